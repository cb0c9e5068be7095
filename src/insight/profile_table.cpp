// Groups a profile's events into rows, and formats tables.
#include <fmt/format.h>

#include <algorithm>

#include "core/enumerators.h"
#include "insight/profile.h"
#include "insight/si_number.h"

namespace mezzo::insight {

namespace {

constexpr double second = 1e9;  // in nanoseconds

// Times of an event, without and with the events inside of it.
struct Share {
    double self = 0, total = 0;  // nanoseconds
    double self_device = 0, device = 0;
    double bytes = 0, flops = 0;  // those of the events inside of it if it has none
    // Whether an outer event has bytes or flops, which include this event's.
    bool bytes_counted = false, flops_counted = false;
};

std::vector<Share> shares_of(const ProfilerImpl& profile) {
    const std::vector<NotedEvent>& events = profile.events;
    std::vector<Share> shares(events.size());
    const std::vector<std::int64_t> on_device = profile.self_device_times();
    const std::int64_t now = profile.now();
    for (std::size_t i = shares.size(); i-- > 0;) {  // events inside of others come after them
        Share& share = shares[i];
        share.self_device = on_device.empty() ? 0 : double(on_device[i]);
        share.device += share.self_device;
        share.total = double(events[i].duration(now));
        share.self += share.total;
        if (events[i].bytes > 0) share.bytes = events[i].bytes;
        if (events[i].flops > 0) share.flops = events[i].flops;
        if (events[i].parent < 0) continue;
        Share& outer = shares[std::size_t(events[i].parent)];
        outer.self -= share.total;
        outer.device += share.device;
        outer.bytes += share.bytes;
        outer.flops += share.flops;
    }
    for (std::size_t i = 0; i < shares.size(); ++i) {
        if (events[i].parent < 0) continue;
        const auto outer = std::size_t(events[i].parent);
        shares[i].bytes_counted = shares[outer].bytes_counted || events[outer].bytes > 0;
        shares[i].flops_counted = shares[outer].flops_counted || events[outer].flops > 0;
    }
    return shares;
}

bool inside_same_name(const ProfilerImpl& profile, const NotedEvent& event) {
    for (int outer = event.parent; outer >= 0; outer = profile.events[std::size_t(outer)].parent) {
        const NotedEvent& one = profile.events[std::size_t(outer)];
        if (one.name == event.name && one.kind == event.kind) return true;
    }
    return false;
}

// Rows in the order in which their names first appear.
class Rows {
public:
    ProfileRow& operator[](const std::string& name) {
        const auto [entry, fresh] = places_.try_emplace(name, rows_.size());
        if (fresh) rows_.emplace_back().name = name;
        return rows_[entry->second];
    }
    std::vector<ProfileRow> take() { return std::move(rows_); }

private:
    std::unordered_map<std::string, std::size_t> places_;
    std::vector<ProfileRow> rows_;
};

std::vector<ProfileRow> rows_by_op(const ProfilerImpl& profile) {
    const std::vector<Share> shares = shares_of(profile);
    Rows rows;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const NotedEvent& event = profile.events[i];
        ProfileRow& row = rows[profile.name_of(event)];
        ++row.calls;
        row.self_time += shares[i].self / second;
        row.self_device_time += shares[i].self_device / second;
        if (inside_same_name(profile, event)) continue;
        row.total_time += shares[i].total / second;
        row.device_time += shares[i].device / second;
        row.bytes += shares[i].bytes;
        row.flops += shares[i].flops;
    }
    return rows.take();
}

std::vector<ProfileRow> rows_by_module(const ProfilerImpl& profile) {
    const std::vector<Share> shares = shares_of(profile);
    Rows rows;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        std::string path = profile.places.path(profile.events[i].place);
        ++rows[path].calls;
        rows[path].self_time += shares[i].self / second;
        rows[path].self_device_time += shares[i].self_device / second;
        for (;;) {
            ProfileRow& row = rows[path];
            row.total_time += shares[i].self / second;
            row.device_time += shares[i].self_device / second;
            row.bytes += shares[i].bytes_counted ? 0 : profile.events[i].bytes;
            row.flops += shares[i].flops_counted ? 0 : profile.events[i].flops;
            if (path.empty()) break;
            const std::size_t dot = path.rfind('.');
            path.resize(dot == std::string::npos ? 0 : dot);
        }
    }
    return rows.take();
}

void sort_rows(std::vector<ProfileRow>& rows, ProfileSort by) {
    const auto key = [by](const ProfileRow& row) {
        switch (by) {
            case ProfileSort::self_time:
                return row.self_time;
            case ProfileSort::total_time:
                return row.total_time;
            case ProfileSort::calls:
                return double(row.calls);
            case ProfileSort::bytes:
                return row.bytes;
            case ProfileSort::flops:
                return row.flops;
            case ProfileSort::self_device_time:
                return row.self_device_time;
            case ProfileSort::device_time:
                return row.device_time;
            case ProfileSort::name:
                break;
        }
        return 0.0;
    };
    std::stable_sort(rows.begin(), rows.end(), [&](const ProfileRow& a, const ProfileRow& b) {
        return by == ProfileSort::name ? a.name < b.name : key(a) > key(b);
    });
}

std::string time_of(double seconds) {
    if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
    return seconds >= 1e-3 ? fmt::format("{:.3f} ms", 1e3 * seconds)
                           : fmt::format("{:.1f} us", 1e6 * seconds);
}

// Shortens a name from the left: the end of a long name is more specific than its beginning.
std::string shortened(const std::string& name, std::size_t width) {
    if (name.size() <= width) return name;
    std::size_t from = name.size() - width + 2;
    while (from < name.size() && (static_cast<unsigned char>(name[from]) & 0xc0) == 0x80)
        ++from;  // inside of UTF-8
    return ".." + name.substr(from);
}

// Formats rows, with the host's times alone or with the devices' times, which the rates then refer to.
class TableRows {
public:
    // wall: seconds of all steps, to which percentages refer.
    TableRows(bool device, double wall) : device_(device), width_(device ? 25 : 34), wall_(wall) {}

    std::string header(const char* first) const {
        const std::string times =
            device_
                ? fmt::format("{:>10} {:>10} {:>10} {:>6} {:>10}", "self", "total", "dev self", "%", "device")
                : fmt::format("{:>10} {:>6} {:>10} {:>10}", "self", "%", "total", "mean");
        return fmt::format("{:<{}} {:>7} {} {:>9} {:>7} {:>9} {:>7}\n", first, width_, "calls", times,
                           "bytes", "GB/s", "FLOP", "GFLOP/s");
    }
    std::string row(const std::string& name, const ProfileRow& row) const {
        const double seconds = device_ ? row.device_time : row.total_time;
        const auto rate = [&](double amount) {
            return amount > 0 && seconds > 0 ? fmt::format("{:.1f}", amount / seconds / 1e9) : "-";
        };
        const std::string times =
            device_ ? fmt::format("{:>10} {:>10} {:>10} {:>6.1f} {:>10}", time_of(row.self_time),
                                  time_of(row.total_time), time_of(row.self_device_time),
                                  percent(row.self_device_time), time_of(row.device_time))
                    : fmt::format("{:>10} {:>6.1f} {:>10} {:>10}", time_of(row.self_time),
                                  percent(row.self_time), time_of(row.total_time),
                                  row.calls > 0 ? time_of(row.total_time / double(row.calls)) : "-");
        return fmt::format("{:<{}} {:>7} {} {:>9} {:>7} {:>9} {:>7}\n", shortened(name, width_), width_,
                           row.calls, times, row.bytes > 0 ? scaled(row.bytes, "B") : "-", rate(row.bytes),
                           row.flops > 0 ? scaled(row.flops, "") : "-", rate(row.flops));
    }
    // A line with times only. `calls` may be empty.
    std::string rest(const std::string& name, const std::string& calls, double self,
                     double self_device) const {
        const std::string first = fmt::format("{:<{}} {:>7}", name, width_, calls);
        if (!device_) return fmt::format("{} {:>10} {:>6.1f}\n", first, time_of(self), percent(self));
        return fmt::format("{} {:>10} {:>10} {:>10} {:>6.1f}\n", first, time_of(self), "",
                           time_of(self_device), percent(self_device));
    }

private:
    double percent(double seconds) const { return wall_ > 0 ? 100 * seconds / wall_ : 0; }
    bool device_;
    std::size_t width_;
    double wall_;
};

ProfileRow sum_of(std::span<const ProfileRow> rows) {
    ProfileRow sum;
    for (const ProfileRow& row : rows) {
        sum.calls += row.calls;
        sum.self_time += row.self_time;
        sum.self_device_time += row.self_device_time;
    }
    return sum;
}

// Notes below the table: how to read it, and what is missing from it.
std::string remarks(const ProfilerImpl& profile, bool device_times, double on_devices) {
    std::string text;
    if (device_times)
        text += fmt::format(
            "device: {} of kernels, copies and fills, as CUPTI has recorded them; self and total are the "
            "host's\n",
            time_of(on_devices));
    else if (profile.elsewhere && !profile.options.synchronize)
        text +=
            "times are those of the host, which hands work to the device; with synchronize they hold its "
            "work\n";
    if (profile.device && !device_times) text += "no device times: " + profile.device->absence() + "\n";
    if (profile.device && profile.device->lost() > 0)
        text += fmt::format("{} pieces of the devices' work are missing: CUPTI has lost them\n",
                            profile.device->lost());
    if (profile.dropped > 0) text += fmt::format("{} events are missing: see max_events\n", profile.dropped);
    return text;
}

}  // namespace

std::vector<ProfileRow> Profiler::rows(ProfileGroup group_by) const {
    check_enumerator("Profiler.rows", "group_by", group_by, ProfileGroup::module);
    return group_by == ProfileGroup::op ? rows_by_op(*impl_) : rows_by_module(*impl_);
}

std::string Profiler::table(const ProfileTableOptions& options) const {
    check(options.rows > 0, ErrorKind::value, "Profiler.table: rows is ", options.rows,
          "; it must be positive");
    check_enumerator("Profiler.table", "sort_by", options.sort_by, ProfileSort::device_time);
    std::vector<ProfileRow> all = rows(options.group_by);
    sort_rows(all, options.sort_by);
    const std::vector<ProfiledStep> noted = steps();
    double wall = 0, flops = 0, on_devices = 0;
    for (const ProfiledStep& step : noted) wall += double(step.duration) / second;
    const std::vector<Share> shares = shares_of(*impl_);
    for (std::size_t i = 0; i < shares.size(); ++i)
        if (impl_->events[i].parent < 0) flops += shares[i].flops;
    for (const ProfiledDeviceWork& work : device_work()) on_devices += double(work.duration) / second;

    const bool modules = options.group_by == ProfileGroup::module;
    const TableRows lines(device_times(), wall);
    std::string text = lines.header(modules ? "module" : "op");
    const std::size_t shown = std::min(all.size(), std::size_t(options.rows));
    for (const ProfileRow& row : std::span(all).first(shown))
        text += lines.row(modules && row.name.empty() ? "(outside of modules)" : row.name, row);
    if (shown < all.size()) {
        const ProfileRow more = sum_of(std::span(all).subspan(shown));
        text += lines.rest(fmt::format("({} more)", all.size() - shown), fmt::format("{}", more.calls),
                           more.self_time, more.self_device_time);
    }
    const ProfileRow busy = sum_of(all);
    text +=
        lines.rest(device_times() ? "(outside of all noted)" : "(outside of all that is noted)", "",
                   std::max(0.0, wall - busy.self_time), std::max(0.0, on_devices - busy.self_device_time));
    text += fmt::format("{} step{}: {}, {} events, {}, {:.1f} GFLOP/s\n", noted.size(),
                        noted.size() == 1 ? "" : "s", time_of(wall), impl_->events.size(),
                        scaled(flops, "FLOP"), wall > 0 ? flops / wall / 1e9 : 0);
    return text + remarks(*impl_, device_times(), on_devices);
}

MemoryPeak Profiler::memory() const {
    check(impl_->memory != nullptr, ErrorKind::state,
          "Profiler.memory: memory is not noted; set profile_memory in the options");
    const MemoryPeakTrace::Peak& peak = impl_->memory->peak();
    MemoryPeak result{.bytes = peak.bytes, .before = peak.before, .step = peak.step};
    for (std::size_t i = 0; i < peak.owned.size(); i += memory_uses) {
        ModuleMemory module{.module = impl_->places.path(int(i) / memory_uses)};
        std::int64_t* const parts[] = {&module.forward, &module.backward, &module.other};
        for (std::size_t use = 0; use < memory_uses && i + use < peak.owned.size(); ++use)
            *parts[use] = peak.owned[i + use];
        if (module.total() != 0) result.modules.push_back(std::move(module));
    }
    std::stable_sort(result.modules.begin(), result.modules.end(),
                     [](const ModuleMemory& a, const ModuleMemory& b) { return a.total() > b.total(); });
    return result;
}

std::string Profiler::memory_table(int rows) const {
    check(rows > 0, ErrorKind::value, "Profiler.memory_table: rows is ", rows, "; it must be positive");
    const MemoryPeak peak = memory();
    const auto line = [](const std::string& name, const ModuleMemory& m) {
        const auto text = [](std::int64_t bytes) { return bytes == 0 ? "-" : scaled(double(bytes), "B"); };
        return fmt::format("{:<50} {:>10} {:>10} {:>10} {:>10}\n", shortened(name, 50), text(m.total()),
                           text(m.forward), text(m.backward), text(m.other));
    };
    std::string text = fmt::format("{:<50} {:>10} {:>10} {:>10} {:>10}\n", "module", "bytes", "forward",
                                   "backward", "other");
    text += line("(before the profiled steps)", {.other = peak.before});
    ModuleMemory rest;
    for (std::size_t i = 0; i < peak.modules.size(); ++i) {
        const ModuleMemory& m = peak.modules[i];
        if (i < std::size_t(rows)) {
            text += line(m.module.empty() ? "(outside of modules)" : m.module, m);
            continue;
        }
        rest.forward += m.forward;
        rest.backward += m.backward;
        rest.other += m.other;
    }
    if (rest.total() != 0)
        text += line(fmt::format("({} more)", peak.modules.size() - std::size_t(rows)), rest);
    return text + fmt::format("{} at the peak, in step {}\n", scaled(double(peak.bytes), "B"), peak.step);
}

}  // namespace mezzo::insight
