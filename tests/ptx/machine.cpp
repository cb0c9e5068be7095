#include "tests/ptx/machine.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "tests/ptx/warp.h"

namespace mezzo::ptx {

Options options;
Totals totals;

namespace {

// ---- reports

ReportSink& sink() {
    static ReportSink& current =
        *new ReportSink([](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); });
    return current;
}

std::string report_text(const Kernel& kernel, const Instruction* i, const std::string& kind,
                        const std::string& what) {
    std::string text = fmt::format("PTX: {}: {}\n    kernel {}", kind, what, kernel.name);
    if (i != nullptr) text += fmt::format("\n    instruction {}: {}", i - kernel.code.data(), i->text);
    return text;
}

}  // namespace

ReportSink set_report_sink(ReportSink to) { return std::exchange(sink(), std::move(to)); }

void report(const Kernel& kernel, const Instruction* i, const char* kind, const std::string& what) {
    static std::set<std::tuple<const Kernel*, const Instruction*, std::string>> seen;
    if (!seen.emplace(&kernel, i, kind).second) return;
    ++totals.reports;
    sink()(report_text(kernel, i, kind, what));
}

void fault(const Warp& w, const Instruction& i, unsigned lane, const std::string& what) {
    const std::string text = report_text(*w.kernel, &i, "fault", what + ", " + position(w, lane));
    ++totals.reports;
    sink()(text);
    throw Fault(text);
}

std::string position(const Warp& w, unsigned lane) {
    const Dim &at = w.block->index, &grid = w.block->grid;
    return fmt::format("block ({},{},{}) of ({},{},{}), thread {} of {}", at.x, at.y, at.z, grid.x, grid.y,
                       grid.z, w.index * warp_size + lane, w.block->shape.count());
}

// ---- blocks

namespace {

unsigned first_lane(std::uint32_t mask) { return unsigned(std::countr_zero(mask)); }

class Grid {
public:
    Grid(const Kernel& kernel, Dim grid, Dim shape, std::size_t dynamic_shared,
         const std::vector<char>& parameters)
        : kernel_(kernel), dynamic_shared_(dynamic_shared), parameters_(parameters) {
        parameters_.resize(round_up_16(parameters.size()) + 16);  // vector loads may read beyond the last one
        block_.grid = grid;
        block_.shape = shape;
        block_.parameters = &parameters_;
        random_ = options.schedule * 0x9E3779B97F4A7C15ull + 1;
        warps_.resize((shape.count() + warp_size - 1) / warp_size);
        for (std::size_t k = 0; k < warps_.size(); ++k) prepare(warps_[k], unsigned(k));
        limit_ = totals.warp_instructions + options.instruction_limit;
    }

    void run() {
        const Dim& grid = block_.grid;
        const std::uint64_t blocks = std::uint64_t(grid.x) * grid.y * grid.z;
        for (std::uint64_t k = 0; k < blocks; ++k) {
            const std::uint64_t b = options.schedule == 0 ? k : blocks - 1 - k;
            block_.index = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y),
                            unsigned(b / grid.x / grid.y)};
            clear_shared();
            for (Warp& w : warps_) w.start(block_);
            run_block();
        }
    }

private:
    static std::size_t round_up_16(std::size_t n) { return (n + 15) / 16 * 16; }

    void prepare(Warp& w, unsigned index) const {
        w.kernel = &kernel_;
        w.index = index;
        w.registers.assign(kernel_.register_bytes, char(0xFF));
        std::copy(kernel_.constants.begin(), kernel_.constants.end(),
                  w.registers.begin() + std::ptrdiff_t(kernel_.constants_offset));
        w.local.assign(kernel_.local_bytes * warp_size, char(0xFF));
    }

    void clear_shared() {
        const std::size_t bytes = kernel_.dynamic_offset + dynamic_shared_;
        block_.shared.assign(bytes, char(0xFF));
        block_.state.assign(bytes, SharedByte::gap);
        for (const Extent& variable : kernel_.shared)
            std::fill_n(block_.state.begin() + std::ptrdiff_t(variable.offset), variable.size,
                        SharedByte::unwritten);
        std::fill(block_.state.begin() + std::ptrdiff_t(kernel_.dynamic_offset), block_.state.end(),
                  SharedByte::unwritten);
        block_.records.resize(bytes / kernel_.race_granule + 4);
        ++block_.epoch;
    }

    std::uint64_t next_random() {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        return random_;
    }

    // A warp runs far in ascending or descending order, and a little at random.
    void run_block() {
        constexpr std::uint64_t far = 100000;
        std::vector<Warp*> order;
        for (Warp& w : warps_) order.push_back(&w);
        if (options.schedule == 1) std::reverse(order.begin(), order.end());
        const auto has_live = [](const Warp& w) { return w.live != 0; };
        while (std::any_of(warps_.begin(), warps_.end(), has_live)) {
            if (options.schedule > 1)
                for (std::size_t k = order.size(); k > 1; --k)
                    std::swap(order[k - 1], order[next_random() % k]);
            bool progress = false;
            for (Warp* const w : order) {
                if (w->live == 0 || w->at_barrier) continue;
                progress = true;
                w->run(options.schedule > 1 ? 1 + next_random() % 200 : far);
                if (totals.warp_instructions > limit_) throw Fault("PTX: " + kernel_.name + " does not end");
            }
            if (!progress) pass_barrier();
        }
    }

    const Instruction& site_of(const Warp& w) const { return kernel_.code[w.counters[first_lane(w.live)]]; }

    // All warps wait, or have returned: they must wait at one barrier, all of them.
    void pass_barrier() {
        const Instruction* site = nullptr;
        unsigned votes = 0, threads = 0;
        for (Warp& w : warps_) {
            const Instruction* const at = w.live != 0 ? &site_of(w) : nullptr;
            if (w.live != w.exist)
                report(kernel_, at, "bar.sync after some threads have returned",
                       position(w, first_lane(w.exist & ~w.live)));
            if (at == nullptr) continue;
            if (site != nullptr && at != site)
                report(kernel_, at, "warps wait at different barriers",
                       position(w, 0) + ", others at " + site->text);
            site = at;
            if (*w.reg<std::uint32_t>(at->operands[at->vote == Vote::none ? 0 : 1]) != 0)
                fault(w, *at, 0, "a barrier that is not number 0 is not supported");
            threads += unsigned(std::popcount(w.live));
            if (at->vote != Vote::none)
                votes += unsigned(std::popcount(w.predicate(at->operands[2]) & w.live));
        }
        for (Warp& w : warps_)
            if (w.live != 0) release(w, site_of(w), votes, threads);
        ++block_.epoch;
    }

    static void release(Warp& w, const Instruction& site, unsigned votes, unsigned threads) {
        const std::int32_t result = site.operands[0];
        if (site.vote == Vote::count)
            std::fill_n(w.reg<std::uint32_t>(result), warp_size, votes);
        else if (site.vote != Vote::none)
            w.predicate(result) = (site.vote == Vote::any ? votes != 0 : votes == threads) ? all_lanes : 0;
        w.at_barrier = false;
        for (std::uint32_t m = w.live; m != 0; m &= m - 1) ++w.counters[first_lane(m)];
    }

    const Kernel& kernel_;
    std::size_t dynamic_shared_;
    std::vector<char> parameters_;
    std::vector<Warp> warps_;
    Block block_;
    std::uint64_t random_, limit_;
};

}  // namespace

void run(const Kernel& kernel, Dim grid, Dim block, std::size_t dynamic_shared,
         const std::vector<char>& parameters) {
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    ++kernel.launches;
    for (const Instruction& i : kernel.code) i.last_range = nullptr;
    Grid(kernel, grid, block, dynamic_shared, parameters).run();
}

}  // namespace mezzo::ptx
