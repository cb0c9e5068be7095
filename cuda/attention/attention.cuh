// Operands, mask, dropout and row statistics of the attention kernels.
#pragma once

#include <cmath>

#include "cuda/attention/attention.h"
#include "cuda/elementwise/elements.cuh"
#include "cuda/elementwise/random_stream.cuh"
#include "kernels/functor_math.h"

namespace mezzo::cuda {

// [batch, length, heads, dim] with unit stride in dim; strides in elements.
struct HeadRows {
    void* p;
    Dtype dtype;
    std::int64_t batch, length, head;

    __device__ std::int64_t offset(std::int64_t b, std::int64_t h) const { return b * batch + h * head; }
};

// Whether query i may attend to key j: a boolean view of [batch, heads, query, key], or null.
struct AttentionMask {
    const bool* p;
    std::int64_t batch, head, query, key;
};

// Dropout of attention weights. Weight (b, h, i, j) is element ((b heads + h) query + i) key + j of the
// random stream, which core/philox.h describes.
struct AttentionDropout {
    RandomStream stream;
    std::uint32_t threshold;  // 0: nothing is dropped
    double scale;             // of the weights that are not dropped

    __device__ bool kept(std::uint64_t element) const {
        return threshold == 0 || half_word(words(element), static_cast<int>(element % 8)) >= threshold;
    }
    // Bit n is set if element + n is not dropped.
    __device__ std::uint32_t kept8(std::uint64_t element) const {
        const int skip = static_cast<int>(element % 8);
        std::uint32_t bits = kept_block(words(element));
        if (skip != 0) bits |= kept_block(words(element + 8)) << 8;
        return bits >> skip & 0xffu;
    }

private:
    __device__ PhiloxWords words(std::uint64_t element) const {
        return stream.block(static_cast<std::int64_t>(element / 8));
    }
    __device__ std::uint32_t kept_block(const PhiloxWords& block) const {
        std::uint32_t bits = 0;
        for (int n = 0; n < 8; ++n) bits |= (philox_half(block, n) >= threshold ? 1u : 0u) << n;
        return bits;
    }
};

struct Attention {
    std::int64_t batch, heads, query, key, dim;
    AttentionMask mask;
    AttentionDropout dropout;
    double scale;
    bool causal;

    // Index in the random stream of element (i, 0) of the weights of head bh = b heads + h.
    __device__ std::uint64_t weight(std::int64_t bh, std::int64_t i) const {
        return (static_cast<std::uint64_t>(bh) * static_cast<std::uint64_t>(query) +
                static_cast<std::uint64_t>(i)) *
               static_cast<std::uint64_t>(key);
    }
    // A causal query i attends to keys 0 ... i + diagonal().
    __host__ __device__ std::int64_t diagonal() const { return key - query; }
    // End of the keys that any of `rows` queries from `first` on attends to. At least 1 if there are keys,
    // because kernels prefetch the first keys.
    __device__ std::int64_t keys_end(std::int64_t first, std::int64_t rows) const {
        const std::int64_t end = first + rows + diagonal();
        if (!causal || end >= key) return key;
        return end > 0 ? end : key < 1 ? key : 1;
    }
    // The first query that attends to key j, rounded down to a multiple of `step`.
    __device__ std::int64_t first_query(std::int64_t j, int step) const {
        const std::int64_t i = causal ? j - diagonal() : 0;
        return i > 0 ? i / step * step : 0;
    }
    // Whether a mask that is the same for all queries hides key j.
    __device__ bool hidden_from_all(std::int64_t b, std::int64_t h, std::int64_t j) const {
        if (mask.p == nullptr || (mask.query != 0 && query > 1) || j >= key) return false;
        return !mask.p[b * mask.batch + h * mask.head + j * mask.key];
    }
    // Whether some key may be hidden from one query and not from another.
    __device__ bool hides_per_query() const {
        return query > 1 && (causal || (mask.p != nullptr && mask.query != 0));
    }
    // Whether query i attends to key j; false outside the lengths.
    __device__ bool visible(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
        if (i >= query || j >= key || (causal && j > i + diagonal())) return false;
        return mask.p == nullptr || mask.p[b * mask.batch + h * mask.head + i * mask.query + j * mask.key];
    }
};

// Statistics of a query row for the gradient: p = exp(scale (score - max) - log_sum), ds = p (dp - delta).
// Maximum and logarithm are separate, because their sum would round the logarithm away where scores are
// large.
template <class C> struct alignas(4 * sizeof(C)) RowStatistics {
    C max, log_sum, delta;  // max: of the scores, not scaled; log_sum: times a factor
};

// Rows of RowStatistics per head: the number of queries rounded up to whole tiles, so that no kernel needs a
// bounds check.
inline constexpr std::int64_t statistics_tile = 128;
inline std::int64_t statistics_rows(std::int64_t query) {
    return (query + statistics_tile - 1) / statistics_tile * statistics_tile;
}

inline HeadRows head_rows(const Tensor& x) {
    return {raw(x), x.dtype(), x.strides()[0], x.strides()[1], x.strides()[2]};
}

// Inputs of RowStatistics. The kernel of the query gradient computes the statistics of its own rows, and
// stores them for the kernel of the key gradient, which reads all rows.
template <class C> struct StatisticsSource {
    HeadRows g, y;
    AnyArray<C> max, sum;  // [batch, heads, query]
    C factor;              // of log_sum
    RowStatistics<C>* made;
    std::int64_t stride;  // statistics_rows(query)

    // The sum over dim of g y, in row i of a head; 0 unless the row is there. All lanes of a warp call it
    // together, and every lane gets the sum. load(rows, n): element n as C.
    template <class Load> __device__ C delta(bool there, std::int64_t b, std::int64_t h, std::int64_t i,
                                             std::int64_t dim, const Load& load) const {
        const std::int64_t of_g = g.offset(b, h) + i * g.length, of_y = y.offset(b, h) + i * y.length;
        const std::int64_t lane = threadIdx.x % 32;
        C result = 0;
        for (std::int64_t d = 0; d < dim; d += 32)
            if (there && d + lane < dim) result += load(g, of_g + d + lane) * load(y, of_y + d + lane);
        return warp_reduce(result, Sum());
    }
    // Statistics of query i of head bh. Rows in which every key is hidden and rows past the last query get
    // {inf, 0, 0}, which makes weights and gradients 0.
    __device__ RowStatistics<C> finish(const Attention& a, std::int64_t bh, std::int64_t i, C delta) const {
        const C total = i < a.query ? sum.load(bh * a.query + i) : C(0);
        if (total == C(0)) return {static_cast<C>(INFINITY), C(0), C(0)};
        return {max.load(bh * a.query + i), functors::math::log(total) * factor, delta};
    }
};
template <class C>
StatisticsSource<C> statistics_source(In in, double factor, const Scratch& made, std::int64_t stride) {
    return {head_rows(in[0]),
            head_rows(in[4]),
            any_of<C>(in[5]),
            any_of<C>(in[6]),
            static_cast<C>(factor),
            made.as<RowStatistics<C>>(),
            stride};
}

// The problem of an op with these q, k, mask (or undefined) and attributes, without the other operands.
Attention attention_problem(const Tensor& q, const Tensor& k, const Tensor& mask,
                            const kernels::ScaledDotProductAttention& at);

// The Tensor Core kernels index with int, which longer sequences would overflow.
inline constexpr std::int64_t flash_max_length = std::int64_t(1) << 30;

// Run the Tensor Core kernels. Return false, with nothing done, if the kernels do not support the operands.
bool flash_attention_forward(const Attention& a, In in, Out out);
bool flash_attention_backward(const Attention& a, In in, Out out);
// In C = float or double, for any operands.
template <class C> void plain_backward(const Attention& a, In in, Out out);
// Requirements of both on the problem, and on an operand.
bool flash_takes(const Attention& a, const Tensor& q);
bool flash_reads(const Tensor& x, Dtype dtype);

}  // namespace mezzo::cuda
