// Attention of one query per head, as when a text is continued: reads keys and values once, where they are.
#include <algorithm>
#include <limits>

#include "cpu/attention/attention.h"
#include "cpu/buffer.h"
#include "cpu/elementwise/convert.h"
#include "cpu/elementwise/loops.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t longest_sum = 256;  // weighted values that are added up one after the other

// Buffers of each thread.
thread_local struct { Buffer q, scores, sums, part, scales, seen; } scratch;

class OneQuery {
public:
    OneQuery(const AttentionProblem& problem, const Heads& result)
        : p(problem),
          y(result),
          kernels(gemm_kernels(std::min(active_isa(), Isa::avx512))),
          shared(p.k.head == 0 && p.v.head == 0 && p.mask.head == 0 ? p.heads : 1),
          ldq(round_up(p.dim, kernels.lanes)) {}

    // Heads whose keys and values are the same memory are computed together, as an item.
    std::int64_t items() const { return p.batch * (p.heads / shared); }
    std::int64_t work() const { return 2 * shared * p.key * p.dim; }  // multiply-adds of an item
    void run(std::int64_t item) const;

private:
    const float* queries(std::int64_t b, std::int64_t h) const;
    float weigh(float* scores, const std::uint8_t* seen, std::int64_t n) const;
    const float* weighted_values(std::int64_t b, std::int64_t h, KeyRange keys, const float* weights) const;

    const AttentionProblem& p;
    const Heads& y;
    const GemmKernels& kernels;
    const std::int64_t shared, ldq;
};

// The queries of an item, times the scale.
const float* OneQuery::queries(std::int64_t b, std::int64_t h) const {
    float* const q = scratch.q.get<float>(shared * ldq);
    for (std::int64_t r = 0; r < shared; ++r) {
        float* const row = q + r * ldq;
        convert(p.q.at(b, 0, h + r), p.q.dtype, row, float32, p.dim);
        for (std::int64_t i = 0; i < p.dim; ++i) row[i] *= float(p.scale);
        std::fill(row + p.dim, row + ldq, 0.0f);
    }
    return q;
}

// Turns scores into weights that are not divided by their sum yet. Returns 1 / sum, or 0 if the query attends
// to no key. `seen` is null if it attends to all.
float OneQuery::weigh(float* scores, const std::uint8_t* seen, std::int64_t n) const {
    if (seen)
        for (std::int64_t j = 0; j < n; ++j)
            if (!seen[j]) scores[j] = -infinity;
    const RealLoops<float>& loops = active_loops().f32;
    const float top = loops.max(scores, n);
    if (top == -infinity) {
        std::fill(scores, scores + n, 0.0f);
        return 0;
    }
    return float(1 / loops.exp_sum(scores, scores, n, top));
}

// [shared, ldq]: the sums of values times weights [shared, keys].
const float* OneQuery::weighted_values(std::int64_t b, std::int64_t h, KeyRange keys,
                                       const float* weights) const {
    float* const sums = scratch.sums.get<float>(shared * ldq);
    float* const part = scratch.part.get<float>(shared * ldq);
    const std::int64_t n = keys.end - keys.begin;
    std::fill(sums, sums + shared * ldq, 0.0f);
    for (std::int64_t j = 0; j < n; j += longest_sum) {
        kernels.skinny(weights + j, n, shared, p.v.along_rows(b, keys.begin + j, h), p.dim,
                       std::min(longest_sum, n - j), part, ldq);
        for (std::int64_t r = 0; r < shared; ++r)
            for (std::int64_t i = 0; i < p.dim; ++i) sums[r * ldq + i] += part[r * ldq + i];
    }
    return sums;
}

void OneQuery::run(std::int64_t item) const {
    const std::int64_t b = item / (p.heads / shared), h = item % (p.heads / shared) * shared;
    std::uint8_t* const seen = scratch.seen.get<std::uint8_t>(p.key);
    const KeyRange keys = p.visible_keys(b, h, seen);
    const std::int64_t n = keys.end - keys.begin;
    float* const scores = scratch.scores.get<float>(shared * n);
    float* const scales = scratch.scales.get<float>(shared);
    if (n > 0)
        kernels.skinny(queries(b, h), ldq, shared, p.k.along_dim(b, keys.begin, h), n, p.dim, scores, n);
    for (std::int64_t r = 0; r < shared; ++r)
        scales[r] = n > 0 ? weigh(scores + r * n, p.mask.any() ? seen + keys.begin : nullptr, n) : 0;
    const float* const sums = weighted_values(b, h, keys, scores);
    for (std::int64_t r = 0; r < shared; ++r)
        write_rows(sums + r * ldq, ldq, 1, p.dim, scales[r], y, y.at(b, 0, h + r));
}

}  // namespace

void attention_of_one_query(const AttentionProblem& p, const Heads& y) {
    const OneQuery one(p, y);
    constexpr std::int64_t least_work = 1 << 18;  // multiply-adds worth waking a thread for
    parallel_for(one.items(), least_work / (one.work() + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) one.run(i);
    });
}

}  // namespace mezzo::cpu
