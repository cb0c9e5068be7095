#include "mezzo/insight/profiler.h"

#include <algorithm>

#include "autograd/autocast_state.h"
#include "core/tensor_impl.h"
#include "core/thread_state.h"
#include "insight/flops.h"
#include "insight/profile.h"

namespace mezzo::insight {

namespace {

// Entries for nested events are allocated at the beginning, because the callbacks must not throw.
constexpr std::size_t most_depth = 1024;

bool& notes_memory() {
    thread_local bool noted = false;
    return noted;
}

double bytes_of(In tensors) {
    double bytes = 0;
    for (const Tensor& x : tensors)
        if (x.defined()) bytes += double(x.numel()) * double(size_of(x.dtype()));
    return bytes;
}

std::vector<ProfiledTensor> shapes_of(In tensors) {
    std::vector<ProfiledTensor> all;
    for (const Tensor& x : tensors)
        if (x.defined()) all.push_back({x.shape(), x.dtype()});
    return all;
}

void check_options(const ProfilerOptions& options) {
    for (const auto& [what, value] :
         {std::pair("skip_first", options.skip_first), std::pair("active", options.active)})
        check(value >= 0, ErrorKind::value, "Profiler: ", what, " is ", value, "; it must not be negative");
    check(options.max_events > 0 && options.max_events < std::int64_t(1) << 31, ErrorKind::value,
          "Profiler: max_events is ", options.max_events, "; it must be positive and less than 2^31");
    check(!options.profile_memory || !notes_memory(), ErrorKind::state,
          "Profiler: another profiler of this thread notes memory; end it first");
}

}  // namespace

const char* name(ProfileKind kind) {
    const char* const names[] = {"op", "backward", "range"};
    return names[int(kind)];
}

ProfilerImpl::ProfilerImpl(const ProfilerOptions& given)
    : options(given), places(given.model), start_(std::chrono::steady_clock::now()) {
    open_.reserve(most_depth);
    if (options.device_times && options.device.type() != DeviceType::cpu) {
        device = std::make_unique<DeviceTimes>(options.device, [this] { return now(); });
        device->note(noting());
    }
    if (!options.profile_memory) return;
    memory = std::make_unique<MemoryPeakTrace>(options.device);
    if (noting()) memory->in_step(0);
    notes_memory() = true;
}

ProfilerImpl::~ProfilerImpl() {
    if (memory) notes_memory() = false;
}

std::int64_t ProfilerImpl::now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_)
        .count();
}

bool ProfilerImpl::noting() const {
    const std::int64_t first = options.skip_first;
    return current_step >= first && (options.active == 0 || current_step - first < options.active);
}

std::string ProfilerImpl::name_of(const NotedEvent& event) const {
    return *names[std::size_t(event.name)] + (event.kind == ProfileKind::backward ? " backward" : "");
}

int ProfilerImpl::number_of(std::string_view event_name) {
    const auto [entry, fresh] = numbers_.try_emplace(std::string(event_name), int(names.size()));
    if (fresh) names.push_back(&entry->first);
    return entry->second;
}

void ProfilerImpl::wait() const noexcept {
    if (!options.synchronize) return;
    try {
        synchronize(options.device);
    } catch (...) {  // the device has failed, and the next call throws
    }
}

const NotedEvent* ProfilerImpl::innermost() const {
    const auto noted = std::find_if(open_.rbegin(), open_.rend(), [](int event) { return event >= 0; });
    return noted == open_.rend() ? nullptr : &events[std::size_t(*noted)];
}

// Begins an event, in the module whose index the callback returns. Counts events that cannot be recorded.
template <class Place>
void ProfilerImpl::begin(std::string_view event_name, ProfileKind kind, const Place& place) noexcept {
    if (open_.size() == most_depth) {
        ++deeper_;
        dropped += noting() ? 1 : 0;
        return;
    }
    open_.push_back(-1);
    if (!noting()) return;
    const NotedEvent* const outer = innermost();
    try {
        if (std::int64_t(events.size()) == options.max_events) throw std::bad_alloc();
        const NotedEvent event{.name = number_of(event_name),
                               .place = place(outer),
                               .parent = outer == nullptr ? -1 : int(outer - events.data()),
                               .kind = kind,
                               .step = current_step};
        events.push_back(event);
        open_.back() = int(events.size()) - 1;
        if (device) device->enter(open_.back());
        wait();
        events.back().begin = now();
    } catch (const std::exception&) {
        ++dropped;
    }
    tell_memory();
}

// Ends the event that began last, and returns it; null if it is not recorded.
NotedEvent* ProfilerImpl::end() noexcept {
    if (deeper_ > 0) {
        --deeper_;
        return nullptr;
    }
    if (open_.empty()) return nullptr;  // it began before the profiler was made
    NotedEvent* const event = open_.back() < 0 ? nullptr : &events[std::size_t(open_.back())];
    if (event != nullptr) {
        wait();
        event->end = now();
        if (device) device->leave();
    }
    open_.pop_back();
    tell_memory();
    return event;
}

// Sets the module and use of later allocations.
void ProfilerImpl::tell_memory() noexcept {
    if (!memory) return;
    const NotedEvent* event = innermost();
    const int place = event == nullptr ? 0 : event->place;
    MemoryUse use =
        event != nullptr && event->kind == ProfileKind::op ? MemoryUse::forward : MemoryUse::other;
    for (; event != nullptr; event = event->parent < 0 ? nullptr : &events[std::size_t(event->parent)])
        if (event->kind == ProfileKind::backward) use = MemoryUse::backward;
    memory->belongs_to(place, use);
}

// An op that another op runs belongs to the outer op's module. An op that a gradient runs belongs to the
// module of its node, unless it is recomputed forward of a checkpoint.
void ProfilerImpl::op_begins(const AnyOp& op, In given) noexcept {
    begin(op.name(), ProfileKind::op, [&](const NotedEvent* outer) {
        const bool part =
            outer != nullptr && (outer->kind == ProfileKind::op ||
                                 (outer->kind == ProfileKind::backward && !thread_state.recomputing));
        return part ? outer->place : places.of_call(given);
    });
}

void ProfilerImpl::op_ends(const AnyOp& op, In given, In results) noexcept {
    NotedEvent* const event = end();
    ended_place_ = event == nullptr ? -1 : event->place;
    if (event == nullptr) return;
    event->bytes = bytes_of(given) + bytes_of(results);
    event->flops = flops_of(op, given, results);
    elsewhere = elsewhere || std::any_of(results.begin(), results.end(), [](const Tensor& y) {
                    return y.defined() && y.device().type() != DeviceType::cpu;
                });
    if (!options.record_shapes) return;
    try {
        tensors.push_back({shapes_of(given), shapes_of(results)});
        event->tensors = int(tensors.size()) - 1;
    } catch (const std::bad_alloc&) {  // the event is recorded without its shapes
    }
}

// Called after the op has ended.
void ProfilerImpl::called(const AnyOp&, In, In results) {
    const Node* const node =
        !results.empty() && tracked(results[0]) ? results[0]->grad_meta->node.get() : nullptr;
    if (node != nullptr && ended_place_ >= 0) places.note(*node, ended_place_);
}

void ProfilerImpl::viewed(const Tensor& given, const Tensor& view) {
    if (noting()) places.note(*view->grad_meta->node, places.of_call({&given, 1}));
}

void ProfilerImpl::node_begins(const Node& node) noexcept {
    begin(node.op->name(), ProfileKind::backward, [&](const NotedEvent* outer) {
        const int own = places.of_node(node);
        return own >= 0 ? own : outer == nullptr ? 0 : outer->place;
    });
    if (!open_.empty() && open_.back() >= 0 && deeper_ == 0)
        events[std::size_t(open_.back())].flops = backward_flops_of(node);
}

void ProfilerImpl::range_begins(std::string_view range) noexcept {
    begin(range, ProfileKind::range,
          [](const NotedEvent* outer) { return outer == nullptr ? 0 : outer->place; });
}

void ProfilerImpl::step() {
    if (noting()) steps.push_back({current_step, step_begin, now() - step_begin});
    ++current_step;
    if (device) device->note(noting());
    step_begin = now();
    if (!memory) return;
    if (noting())
        memory->in_step(current_step);
    else
        memory->end_steps();
}

Profiler::Profiler(const ProfilerOptions& options) {
    check_options(options);
    impl_ = new ProfilerImpl(options);
}
Profiler::~Profiler() { delete impl_; }
void Profiler::step() { impl_->step(); }
std::int64_t Profiler::dropped() const { return impl_->dropped; }

std::vector<ProfiledStep> Profiler::steps() const {
    std::vector<ProfiledStep> all = impl_->steps;
    const ProfiledStep last{impl_->current_step, impl_->step_begin, impl_->now() - impl_->step_begin};
    // Also the running step, unless it is the time after the last of all steps.
    const bool begun = !impl_->events.empty() && impl_->events.back().step == last.number;
    if (impl_->noting() && begun) all.push_back(last);
    return all;
}

std::vector<std::int64_t> ProfilerImpl::self_device_times() const {
    if (!device || !device->absence().empty()) return {};
    std::vector<std::int64_t> times(events.size());
    for (const ProfiledDeviceWork& work : device->work())
        if (work.event >= 0) times[std::size_t(work.event)] += work.duration;
    return times;
}

bool Profiler::device_times() const { return impl_->device && impl_->device->absence().empty(); }
std::string Profiler::device_times_absence() const {
    return impl_->device ? impl_->device->absence() : std::string();
}
std::vector<ProfiledDeviceWork> Profiler::device_work() const {
    return device_times() ? impl_->device->work() : std::vector<ProfiledDeviceWork>();
}

std::vector<ProfileEvent> Profiler::events() const {
    std::vector<ProfileEvent> all;
    all.reserve(impl_->events.size());
    const std::vector<std::int64_t> on_device = impl_->self_device_times();
    const std::int64_t now = impl_->now();
    for (const NotedEvent& event : impl_->events) {
        ProfileEvent& one = all.emplace_back();
        one.name = impl_->name_of(event);
        one.kind = event.kind;
        one.module = impl_->places.path(event.place);
        one.step = event.step;
        one.begin = event.begin;
        one.duration = event.duration(now);
        one.parent = event.parent;
        if (!on_device.empty()) one.self_device_time = on_device[all.size() - 1];
        one.bytes = event.bytes;
        one.flops = event.flops;
        if (event.tensors < 0) continue;
        one.inputs = impl_->tensors[std::size_t(event.tensors)].inputs;
        one.results = impl_->tensors[std::size_t(event.tensors)].results;
    }
    return all;
}

}  // namespace mezzo::insight
