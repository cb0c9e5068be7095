// Times the algorithms of a product.
#include <algorithm>
#include <array>

#include "cuda/gemm/fallbacks.h"
#include "cuda/gemm/memory.h"
#include "cuda/gemm/plans.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

constexpr int warm_ups = 3, timed_runs = 10;
// The resolution of events is half a microsecond at best, so calls shorter than this are timed in groups.
constexpr float short_ms = 0.02f;
constexpr int group_size = 20;
// The most copies of small operands. They then stay in the L2 cache, as they do in a training step.
constexpr std::int64_t max_copies = 256;

// Bytes from the first to the last element of a row-major operand.
std::int64_t bytes_of(std::int64_t rows, std::int64_t columns, std::int64_t ld, std::int64_t batch,
                      std::int64_t stride, Dtype dtype) {
    return ((batch - 1) * stride + (rows - 1) * ld + columns) * std::int64_t(size_of(dtype));
}

// The product with copies of its operands that take turns. Together they are larger than the L2 cache, so
// that each call finds its own in memory, as most products of a training step do. The caller's results stay
// as they are.
class Rotation {
public:
    explicit Rotation(const Gemm& g) : g_(g) {
        const std::int64_t a =
            bytes_of(g.trans_a ? g.k : g.m, g.trans_a ? g.m : g.k, g.lda, g.batch, g.stride_a, g.a_type);
        const std::int64_t b =
            bytes_of(g.trans_b ? g.n : g.k, g.trans_b ? g.k : g.n, g.ldb, g.batch, g.stride_b, g.b_type);
        const std::int64_t c = bytes_of(g.m, g.n, g.ldc, g.batch, g.stride_c, g.c_type);
        at_b_ = aligned(a);
        at_c_ = at_b_ + aligned(b);
        at_aux_ = at_c_ + aligned(c);
        const std::int64_t aux = g.pre_activation != nullptr || g.saved != nullptr ? c : 0;
        at_mask_ = at_aux_ + aligned(aux);
        const std::int64_t mask = g.mask != nullptr ? relu_mask_bytes(g.m, g.n) : 0;
        at_bias_grad_ = at_mask_ + aligned(mask);
        const std::int64_t sums = g.bias_grad != nullptr ? g.n : g.a_sums != nullptr ? g.m : 0;
        set_ = at_bias_grad_ + aligned(sums * std::int64_t(sizeof(double)));
        const auto cold = static_cast<std::int64_t>(2 * device_info(current_device()).l2_bytes);
        copies_ = std::clamp((cold + set_ - 1) / set_, std::int64_t(1), max_copies);
        memory_.emplace(copies_ * set_);
        fill_zero(memory_->memory, static_cast<std::size_t>(copies_ * set_));
        for (std::int64_t i = 0; i < copies_; ++i) {
            char* const set = copy_at(i);
            copy_on_device(set, g.a, static_cast<std::size_t>(a));
            copy_on_device(set + at_b_, g.b, static_cast<std::size_t>(b));
            if (g.saved == nullptr) continue;
            copy_on_device(set + at_aux_, g.saved, static_cast<std::size_t>(aux));
            if (mask > 0) copy_on_device(set + at_mask_, g.mask, static_cast<std::size_t>(mask));
        }
    }
    Gemm next() {
        char* const set = copy_at(turn_);
        turn_ = (turn_ + 1) % copies_;
        Gemm g = g_;
        g.a = set;
        g.b = set + at_b_;
        g.c = set + at_c_;
        if (g.pre_activation != nullptr) g.pre_activation = set + at_aux_;
        if (g.saved != nullptr) g.saved = set + at_aux_;
        if (g.mask != nullptr) g.mask = set + at_mask_;
        if (g.bias_grad != nullptr) g.bias_grad = set + at_bias_grad_;
        if (g.a_sums != nullptr) g.a_sums = set + at_bias_grad_;
        return g;
    }

private:
    static std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
    char* copy_at(std::int64_t i) const { return static_cast<char*>(memory_->memory) + i * set_; }

    const Gemm g_;
    std::int64_t at_b_, at_c_, at_aux_, at_mask_, at_bias_grad_, set_, copies_, turn_ = 0;
    std::optional<GemmScratch> memory_;
};

// The median time of one call, in milliseconds; none if a call fails.
template <class Call> std::optional<float> median_ms(const Call& call) {
    Event start, stop;
    for (int i = 0; i < warm_ups; ++i) {
        start.record();
        if (!call()) return std::nullopt;
        stop.record();
    }
    const int group = stop.elapsed_ms(start) < short_ms ? group_size : 1;
    std::array<float, timed_runs> times;
    for (float& time : times) {
        start.record();
        for (int i = 0; i < group; ++i)
            if (!call()) return std::nullopt;
        stop.record();
        time = stop.elapsed_ms(start) / float(group);
    }
    std::sort(times.begin(), times.end());
    return (times[timed_runs / 2 - 1] + times[timed_runs / 2]) / 2;
}

// The better time of two calls after the first, which may load the kernel.
template <class Call> std::optional<float> quick_ms(const Call& call) {
    Event start, stop;
    std::optional<float> best;
    for (int i = 0; i < 3; ++i) {
        start.record();
        if (!call()) return std::nullopt;
        stop.record();
        const float ms = stop.elapsed_ms(start);
        if (i > 0 && (!best || ms < *best)) best = ms;
    }
    return best;
}

struct Timed {
    float ms;
    lt::Algo algo;
};

// The plan's candidates that pass the check and execute, the fastest first.
std::vector<Timed> timed_candidates(GemmService& s, const Gemm& g, lt::Epilogue e, CachedPlan& cached,
                                    Rotation& rotation) {
    std::vector<Timed> timed;
    for (const lt::Algo& algo : cached.candidates) {
        if (!passes_check(s, problem_of(g, e), algo)) continue;
        const Trials uncounted;
        const auto ms = median_ms([&] { return run_algo(s, rotation.next(), e, cached, algo); });
        if (ms) timed.push_back({*ms, algo});
    }
    std::stable_sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.ms < b.ms; });
    return timed;
}

}  // namespace

std::optional<lt::Choice> tune(GemmService& s, const Gemm& g,
                               const std::vector<lt::Epilogue>& epilogues) try {
    Rotation rotation(g);
    std::optional<lt::Choice> best;
    float best_ms = 0;
    for (const lt::Epilogue e : epilogues) {
        CachedPlan& cached = plan_for(s, g, e);
        const std::vector<Timed> timed = timed_candidates(s, g, e, cached, rotation);
        cached.candidates.clear();
        for (const Timed& t : timed) cached.candidates.push_back(t.algo);
        cached.chosen = 0;
        cached.verified = !timed.empty();
        if (timed.empty() || (best && timed[0].ms >= best_ms)) continue;
        best = {e, timed[0].algo};
        best_ms = timed[0].ms;
    }
    return best;
} catch (const Error& error) {
    if (error.kind() != ErrorKind::memory) throw;
    return std::nullopt;  // the library's own order is used
}

void with_timer(GemmService& s, const Gemm& g, const std::function<void(const TimeAlgo&)>& use) {
    Rotation rotation(g);
    use([&](lt::Epilogue e, const lt::Algo& algo, Timing timing) {
        CachedPlan& cached = plan_for(s, g, e);
        const Trials uncounted;
        const auto call = [&] { return run_algo(s, rotation.next(), e, cached, algo); };
        return timing == Timing::quick ? quick_ms(call) : median_ms(call);
    });
}

}  // namespace mezzo::cuda
