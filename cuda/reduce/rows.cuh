// Kernels in which a team of threads works on one row of a [outer, cols, inner] tensor: a thread where
// adjacent rows are interleaved in memory, a warp for short rows, a block for long ones.
#pragma once

#include "cuda/elementwise/elements.cuh"
#include "kernels/functor_math.h"

namespace mezzo::cuda {

inline constexpr unsigned rows_block = 256;
inline constexpr std::int64_t warp_cols = 1024;  // longest row for a warp

struct Rows {
    std::int64_t rows, cols, inner;
    // Element 0 of row r, elements are `inner` apart.
    __device__ std::int64_t base(std::int64_t r) const {
        return inner == 1 ? r * cols : r / inner * cols * inner + r % inner;
    }
};

inline Rows rows_along(const Shape& shape, std::int64_t dim) {
    Rows rows{1, 1, 1};
    if (shape.empty()) return rows;
    rows.cols = shape[static_cast<int>(dim)];
    for (int d = 0; d < shape.size(); ++d) {
        if (d == dim) continue;
        rows.rows *= shape[d];
        if (d > dim) rows.inner *= shape[d];
    }
    return rows;
}

struct ThreadTeam {
    static __device__ std::int64_t first_row() { return first_item(); }
    static __device__ std::int64_t row_step() { return item_step(); }
    static __device__ std::int64_t rank() { return 0; }
    static __device__ std::int64_t size() { return 1; }
    template <class T, class Op> static __device__ T reduce(const T& value, const T&, Op) { return value; }
};
struct WarpTeam {
    static __device__ std::int64_t first_row() { return first_item() / 32; }
    static __device__ std::int64_t row_step() { return item_step() / 32; }
    static __device__ std::int64_t rank() { return threadIdx.x % 32; }
    static __device__ std::int64_t size() { return 32; }
    template <class T, class Op> static __device__ T reduce(const T& value, const T&, Op op) {
        return warp_reduce(value, op);
    }
};
struct BlockTeam {
    static __device__ std::int64_t first_row() { return blockIdx.x; }
    static __device__ std::int64_t row_step() { return gridDim.x; }
    static __device__ std::int64_t rank() { return threadIdx.x; }
    static __device__ std::int64_t size() { return blockDim.x; }
    template <class T, class Op> static __device__ T reduce(const T& value, const T& identity, Op op) {
        return block_reduce(value, identity, op);
    }
};

// run(Team{}, grid, block) with the team that suits rows of adjacent elements.
template <class Run> void with_row_team(const Rows& r, const Run& run) {
    if (r.rows == 0 || r.cols == 0) return;
    if (r.cols <= warp_cols)
        run(WarpTeam{}, grid_for(r.rows * 32, rows_block), rows_block);
    else
        run(BlockTeam{}, grid_for(r.rows, 1), rows_block);
}
// The same for rows of any stride.
template <class Run> void with_team(const Rows& r, const Run& run) {
    if (r.inner < 32) return with_row_team(r, run);
    if (r.rows != 0 && r.cols != 0) run(ThreadTeam{}, grid_for(r.rows, rows_block), rows_block);
}

// A sum in blocks of 256 terms, so that rounding errors grow slowly: no chain of rounded additions is longer
// than 256 within a block and one per block after that.
template <class C> struct BlockedSum {
    C total = 0, part = 0;
    int count = 0;
    __device__ void add(C x) {
        part += x;
        if (++count == 256) flush();
    }
    __device__ void flush() {
        total += part;
        part = 0;
        count = 0;
    }
    __device__ C get() const { return total + part; }
};

// The running maximum of some values and the sum of exp(value - maximum): one pass over a row for its softmax
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867).
template <class C> struct MaxSum {
    C max, sum;
    static __device__ MaxSum none() { return {-static_cast<C>(INFINITY), C(0)}; }
    __device__ void add(C x) {
        if (x == -static_cast<C>(INFINITY)) return;  // adds 0, but -inf - -inf would be NaN
        if (x > max) {
            sum = sum * functors::math::exp(max - x) + (x - x + C(1));  // 1; NaN if x is infinity
            max = x;
        } else {
            sum += functors::math::exp(x - max);
        }
    }
};
struct MergeMaxSum {
    template <class C> __device__ MaxSum<C> operator()(const MaxSum<C>& a, const MaxSum<C>& b) const {
        const C max = a.max > b.max ? a.max : b.max;
        if (max == -static_cast<C>(INFINITY)) return {max, a.sum + b.sum};
        return {max, scaled(a, max) + scaled(b, max)};
    }

private:
    template <class C> static __device__ C scaled(const MaxSum<C>& x, C max) {
        return x.max == max ? x.sum : x.sum * functors::math::exp(x.max - max);
    }
};

template <class Team, class A>
__device__ MaxSum<typename A::C> max_sum(const A& x, std::int64_t base, const Rows& r) {
    constexpr std::int64_t block = 256;  // terms that are summed up separately, see BlockedSum
    const std::int64_t step = Team::size();
    auto result = MaxSum<typename A::C>::none();
    for (std::int64_t j = Team::rank(); j < r.cols;) {
        auto part = MaxSum<typename A::C>::none();
        for (std::int64_t n = 0; n < block && j < r.cols; ++n, j += step)
            part.add(x.load(base + j * r.inner));
        result = MergeMaxSum()(result, part);
    }
    return Team::reduce(result, MaxSum<typename A::C>::none(), MergeMaxSum());
}

// ln stats.sum. Near 1 the logarithm is computed from the sum without the largest element, which would round
// the others away. All threads of the team get the result.
template <class Team, class A> __device__ typename A::C log_of_sum(const A& x, std::int64_t base,
                                                                   const Rows& r,
                                                                   const MaxSum<typename A::C>& stats) {
    using C = typename A::C;
    if (!(stats.sum < C(1.5))) return functors::math::log(stats.sum);
    BlockedSum<C> others;  // there is one largest element: two would have a sum of 2
    for (std::int64_t j = Team::rank(); j < r.cols; j += Team::size()) {
        const C value = x.load(base + j * r.inner);
        if (value < stats.max) others.add(functors::math::exp(value - stats.max));
    }
    return functors::math::log1p(Team::reduce(others.get(), C(0), Sum()));
}

}  // namespace mezzo::cuda
