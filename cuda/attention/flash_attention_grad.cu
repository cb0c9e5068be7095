// The gradient of scaled_dot_product_attention on Tensor Cores, without atomics: one kernel iterates over the
// queries for each tile of keys (dk, dv), another over the keys for each tile of queries (dq), which comes
// first and makes the statistics of the rows. Both compute the scores again. That takes 7 products per pair
// instead of the 5 of a single kernel in which many blocks add to dq, but results are reproducible.
//
// Operations per (query, key) pair that is not skipped: 7 dim multiply-adds and two exponentials. Memory: g,
// y, q, dq and 16 bytes per query row once; k and v once per 128 queries; q and g once per 128 keys (64 of
// either for dim 128), mostly from the L2 cache. Shared memory per block for dim 32, 64, 128 in KiB: dq 30,
// 54, 68; dk and dv 31, 55, 69. Compute capabilities 8.6, 8.9 and 12.0 have 99.
#include "cuda/attention/flash_attention.cuh"

namespace mezzo::cuda {
namespace {

using Statistics = RowStatistics<float>;  // max, log2(sum), delta

// 16-row tiles per warp, and rows of the other side per step: as many as the registers and 99 KiB of shared
// memory hold.
template <int dim> struct GradientTiles {
    static constexpr int tiles = dim == 128 ? 1 : 2, rows = tiles * 16 * flash_warps, step = 32;
    static std::size_t query_bytes() {
        return (2 * rows + flash_stages_on_device() * 2 * step) * pitch<dim> * sizeof(float16_t);
    }
    static std::size_t key_bytes() {
        return query_bytes() + flash_stages_on_device() * step * sizeof(Statistics);
    }
};

struct Operands {
    HeadRows g, q, k, v;
    StatisticsSource<float> statistics;
};

// Computes the statistics of a warp's 16 `tiles` rows from `first` on: to[i][half] gets those of row 16 i + 8
// half + lane_row(). Also stores all of them for the gradients of the keys.
template <class T, int dim, int tiles>
__device__ void make_statistics(const Attention& a, const FlashPlace& at, int first,
                                const StatisticsSource<float>& from, Statistics (&to)[tiles][2]) {
    constexpr int together = 8;  // rows whose values are on their way at a time
    float own = 0;
    for (int n = 0; n < 16 * tiles; n += together) {
        MEZZO_UNROLL
        for (int r = 0; r < together; ++r) {
            const float delta = from.delta(
                first + n + r < a.query, at.b, at.h, first + n + r, dim,
                [](const HeadRows& x, std::int64_t i) { return to_float(static_cast<const T*>(x.p)[i]); });
            if (flash_lane() == n + r) own = delta;
        }
    }
    const Statistics row = from.finish(a, at.bh, first + flash_lane(), own);
    if (flash_lane() < 16 * tiles) from.made[at.bh * from.stride + first + flash_lane()] = row;
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int n = i * 16 + half * 8 + lane_row();
            to[i][half] = {__shfl_sync(0xffffffffu, row.max, n), __shfl_sync(0xffffffffu, row.log_sum, n),
                           __shfl_sync(0xffffffffu, row.delta, n)};
        }
    }
}

// Overwrites dp = g v^T by the gradient ds of the scores s, in a warp's tile that begins at query i0 and key
// j0.
template <int tiles, int groups>
__device__ void score_gradient(const float (&s)[tiles][groups][4], float (&dp)[tiles][groups][4],
                               const Attention& a, const FlashPlace& at, int i0, int j0,
                               const Statistics (&rows)[tiles][2]) {
    const float scale = static_cast<float>(a.scale) * log2_e,
                kept_scale = static_cast<float>(a.dropout.scale);
    const bool whole = a.mask.p == nullptr && j0 + groups * 8 <= a.key &&
                       !(a.causal && j0 + groups * 8 - 1 > i0 + a.diagonal());
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int query = i0 + i * 16 + half * 8 + lane_row();
            const std::uint64_t row = a.weight(at.bh, query);
            MEZZO_UNROLL
            for (int word = 0; word < groups / 4; ++word) {
                const std::uint32_t kept =
                    a.dropout.threshold == 0
                        ? ~0u
                        : kept_in_row(a.dropout, row + static_cast<std::uint64_t>(j0 + word * 32));
                MEZZO_UNROLL
                for (int n = 0; n < 8; ++n) {
                    const int j = word * 4 + n / 2, e = 2 * half + n % 2;
                    const bool keep = kept >> (n / 2 * 8 + n % 2 + lane_column()) & 1u;
                    const bool visible =
                        whole || a.visible(at.b, at.h, query, j0 + j * 8 + n % 2 + lane_column());
                    const float p = visible ? exp2_approximate((s[i][j][e] - rows[i][half].max) * scale -
                                                               rows[i][half].log_sum)
                                            : 0.0f;
                    const float ds = p * ((keep ? dp[i][j][e] * kept_scale : 0.0f) - rows[i][half].delta);
                    dp[i][j][e] = visible ? ds : 0.0f;  // dp may be inf or NaN where it is hidden
                }
            }
        }
    }
}

// Sets elements that are inf or NaN to 0, in `rows` rows that the block reads before and after. A gradient ds
// of a visible score with such a key is NaN by itself, so that only products with the zeros of hidden pairs
// change.
template <class T, int dim, int rows> __device__ void clear_nonfinite(T* tile) {
    __syncthreads();
    for (int n = static_cast<int>(threadIdx.x); n < rows * dim; n += flash_threads) {
        T& x = tile[n / dim * pitch<dim> + n % dim];
        if (to_float(x) * 0.0f != 0.0f) x = from_float<T>(0.0f);
    }
    __syncthreads();
}

// Whether any thread of the block has an inf or NaN in its rows.
template <int tiles, int groups> __device__ bool any_nonfinite(const float (&d)[tiles][groups][4]) {
    unsigned lanes[tiles][2] = {};
    find_nonfinite(d, lanes);
    bool any = false;
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) any = any || (lanes[i][0] | lanes[i][1]) != 0;
    return __syncthreads_or(any) != 0;
}

template <int tiles, int groups> __device__ void clear(float (&d)[tiles][groups][4]) {
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int j = 0; j < groups; ++j) d[i][j][0] = d[i][j][1] = d[i][j][2] = d[i][j][3] = 0;
    }
}

// Stores a warp's rows times a factor.
template <class T, int dim, int tiles>
__device__ void store_scaled(const HeadRows& to, const FlashPlace& at, int first, std::int64_t length,
                             const float (&d)[tiles][dim / 8][4], double factor) {
    float factors[tiles][2];
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) factors[i][0] = factors[i][1] = static_cast<float>(factor);
    store_rows<T, dim>(to, at, first, length, d, factors);
}

// Waits for a stage, and starts copying the next one, which begins at row `next`, if shared memory
// holds both. Returns whether there is a next one.
template <class Fetch> __device__ bool begin_stage(const Fetch& fetch, int stage, int next, int end) {
    copy_async_wait<0>();
    __syncthreads();  // all threads see this stage, and none reads the other one any more
    if (next < end && flash_stages == 2) fetch(stage ^ 1, next);
    return next < end;
}

// Starts copying the next stage, if it reuses the memory of this one.
template <class Fetch> __device__ void end_stage(const Fetch& fetch, int next, bool more) {
    if (flash_stages != 1) return;
    __syncthreads();  // all threads have read the tile
    if (more) fetch(0, next);
}

// dq = scale ds k. Three blocks of dim 128 share a multiprocessor that has the memory for them.
template <class T, int dim> __global__ void __launch_bounds__(flash_threads, dim == 128 ? 3 : 1)
    flash_query_gradient_kernel(Attention a, Operands x, HeadRows dq) {
    using Tile = GradientTiles<dim>;
    constexpr int tiles = Tile::tiles, rows = Tile::rows, step = Tile::step;
    MEZZO_DYN_SHARED(T, query_tile);
    T* const gradient_tile = query_tile + rows * pitch<dim>;
    T* const stages = gradient_tile + rows * pitch<dim>;  // [flash_stages][keys, values][step][pitch]
    const int warp_first = static_cast<int>(threadIdx.x / 32) * tiles * 16;
    for (std::int64_t index = blockIdx.x; index < FlashPlace::count(a, a.query, rows); index += gridDim.x) {
        const FlashPlace at(a, index, a.query, rows, a.causal);
        const FlashOperand<T> queries(x.q, at.b, at.h, a.query), gradients(x.g, at.b, at.h, a.query),
            keys(x.k, at.b, at.h, a.key), values(x.v, at.b, at.h, a.key);
        const auto fetch = [&](int stage, int j0) {
            T* const to = stages + stage * 2 * step * pitch<dim>;
            keys.template fetch<dim, step>(to, j0, a, at);
            values.template fetch<dim, step>(to + step * pitch<dim>, j0, a, at);
            copy_async_commit();
        };
        const int end = static_cast<int>(a.keys_end(at.first, rows));
        const int i0 = at.first + warp_first;
        Statistics statistics[tiles][2];
        float result[tiles][dim / 8][4] = {};
        __syncthreads();  // all threads have read the tiles of the previous index
        queries.template fetch<dim, rows>(query_tile, at.first);
        gradients.template fetch<dim, rows>(gradient_tile, at.first);
        fetch(0, 0);
        make_statistics<T, dim>(a, at, i0, x.statistics, statistics);  // while the tiles are on their way
        bool careful = false;
        for (int j0 = 0, stage = 0; j0 < end; j0 += step, stage = (stage + 1) % flash_stages) {
            const bool more = begin_stage(fetch, stage, j0 + step, end);
            T* const tile = stages + stage * 2 * step * pitch<dim>;
            Scores<tiles, step> s, dp;
            multiply_rows<T, dim>(s, query_tile + warp_first * pitch<dim>, tile);
            multiply_rows<T, dim>(dp, gradient_tile + warp_first * pitch<dim>, tile + step * pitch<dim>);
            score_gradient(s, dp, a, at, i0, j0, statistics);
            if (careful) clear_nonfinite<T, dim, step>(tile);
            add_product<T, dim>(result, dp, tile);
            end_stage(fetch, j0 + step, more);
            // Keys that are hidden from some queries may have spoilt their rows: once more, with cleared
            // keys.
            if (more || careful || !a.hides_per_query() || !any_nonfinite(result)) continue;
            careful = true;
            clear(result);
            fetch((stage + 1) % flash_stages, 0);
            j0 = -step;
        }
        store_scaled<T, dim>(dq, at, i0, a.query, result, a.scale);
    }
}

// The same with keys as rows and queries as columns, in a warp's tile that begins at key j0 and query i0:
// overwrites s by the weights, with 0 for those that are dropped, and dp by the gradient of the scores.
// `columns` holds the statistics of the queries from i0 on.
template <int tiles, int groups>
__device__ void transposed_gradient(float (&s)[tiles][groups][4], float (&dp)[tiles][groups][4],
                                    const Attention& a, const FlashPlace& at, int j0, int i0,
                                    const Statistics* columns) {
    const float scale = static_cast<float>(a.scale) * log2_e,
                kept_scale = static_cast<float>(a.dropout.scale);
    const bool whole = a.mask.p == nullptr && !(a.causal && j0 + tiles * 16 - 1 > i0 + a.diagonal());
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int pair = 0; pair < groups / 2; ++pair) {
            Frag2 kept{{~0u, ~0u}};
            if (a.dropout.threshold != 0)
                kept = kept_in_columns(
                    a.dropout, a.weight(at.bh, i0 + pair * 16) + static_cast<std::uint64_t>(j0 + i * 16),
                    static_cast<std::uint64_t>(a.key));
            MEZZO_UNROLL
            for (int n = 0; n < 8; ++n) {
                const int j = pair * 2 + n / 4, e = n % 4, column = j * 8 + e % 2 + lane_column();
                const bool keep = kept.v[n / 4] >> (8 * e + lane_row()) & 1u;
                const bool visible =
                    whole || a.visible(at.b, at.h, i0 + column, j0 + i * 16 + e / 2 * 8 + lane_row());
                const Statistics row = columns[column];
                const float p =
                    visible ? exp2_approximate((s[i][j][e] - row.max) * scale - row.log_sum) : 0.0f;
                const float ds = p * ((keep ? dp[i][j][e] * kept_scale : 0.0f) - row.delta);
                dp[i][j][e] = visible ? ds : 0.0f;  // dp may be inf or NaN where it is hidden
                s[i][j][e] = keep ? p : 0.0f;
            }
        }
    }
}

// dv = d(p)^T g and dk = scale ds^T q, where d is dropout.
template <class T, int dim> __global__ void __launch_bounds__(flash_threads)
    flash_key_gradient_kernel(Attention a, Operands x, HeadRows dk, HeadRows dv) {
    using Tile = GradientTiles<dim>;
    constexpr int tiles = Tile::tiles, rows = Tile::rows, step = Tile::step;
    MEZZO_DYN_SHARED(T, key_tile);
    T* const value_tile = key_tile + rows * pitch<dim>;
    T* const stages = value_tile + rows * pitch<dim>;  // [flash_stages][queries, gradients][step][pitch]
    auto* const statistics =
        reinterpret_cast<Statistics*>(stages + flash_stages * 2 * step * pitch<dim>);  // [flash_stages][step]
    const int warp_first = static_cast<int>(threadIdx.x / 32) * tiles * 16;
    for (std::int64_t index = blockIdx.x; index < FlashPlace::count(a, a.key, rows); index += gridDim.x) {
        const FlashPlace at(a, index, a.key, rows, false);
        const FlashOperand<T> queries(x.q, at.b, at.h, a.query), gradients(x.g, at.b, at.h, a.query),
            keys(x.k, at.b, at.h, a.key), values(x.v, at.b, at.h, a.key);
        const auto fetch = [&](int stage, int i0) {
            T* const to = stages + stage * 2 * step * pitch<dim>;
            queries.template fetch<dim, step>(to, i0);
            gradients.template fetch<dim, step>(to + step * pitch<dim>, i0);
            const int row = static_cast<int>(threadIdx.x);
            if (row < step)
                copy_async(statistics + stage * step + row,
                           x.statistics.made + at.bh * x.statistics.stride + i0 + row);
            copy_async_commit();
        };
        const int begin = static_cast<int>(a.first_query(at.first, step)), end = static_cast<int>(a.query);
        float key_result[tiles][dim / 8][4] = {}, value_result[tiles][dim / 8][4] = {};
        __syncthreads();  // all threads have read the tiles of the previous index
        if (begin < end) {
            keys.template fetch<dim, rows>(key_tile, at.first, a, at);
            values.template fetch<dim, rows>(value_tile, at.first, a, at);
            fetch(0, begin);
        }
        for (int i0 = begin, stage = 0; i0 < end; i0 += step, stage = (stage + 1) % flash_stages) {
            const bool more = begin_stage(fetch, stage, i0 + step, end);
            const T* const tile = stages + stage * 2 * step * pitch<dim>;
            Scores<tiles, step> s, dp;
            multiply_rows<T, dim>(s, key_tile + warp_first * pitch<dim>, tile);
            multiply_rows<T, dim>(dp, value_tile + warp_first * pitch<dim>, tile + step * pitch<dim>);
            transposed_gradient(s, dp, a, at, at.first + warp_first, i0, statistics + stage * step);
            add_product<T, dim>(value_result, s, tile + step * pitch<dim>);
            add_product<T, dim>(key_result, dp, tile);
            end_stage(fetch, i0 + step, more);
        }
        const int first = at.first + warp_first;
        store_scaled<T, dim>(dk, at, first, a.key, key_result, a.scale);
        store_scaled<T, dim>(dv, at, first, a.key, value_result, a.dropout.scale);
    }
}

// Computes again the rows of dk and dv that are not finite, over visible pairs only; a warp per row. This is
// a separate kernel, because the one above has no registers left.
template <class T, int dim> __global__ void __launch_bounds__(flash_threads)
    flash_key_redo_kernel(Attention a, Operands x, HeadRows dk, HeadRows dv) {
    const float scale = static_cast<float>(a.scale), kept_scale = static_cast<float>(a.dropout.scale);
    const auto warp = static_cast<int>(threadIdx.x / 32);
    for (std::int64_t index = blockIdx.x; index < FlashPlace::count(a, a.key, flash_warps);
         index += gridDim.x) {
        const FlashPlace at(a, index, a.key, flash_warps, false);
        const int j = at.first + warp;
        if (j >= a.key) continue;
        const FlashOperand<T> queries(x.q, at.b, at.h, a.query), gradients(x.g, at.b, at.h, a.query);
        LaneRow<T, dim> key_result(FlashOperand<T>(dk, at.b, at.h, a.key), j),
            value_result(FlashOperand<T>(dv, at.b, at.h, a.key), j);
        if (key_result.finite() && value_result.finite()) continue;
        const LaneRow<T, dim> key(FlashOperand<T>(x.k, at.b, at.h, a.key), j),
            value(FlashOperand<T>(x.v, at.b, at.h, a.key), j);
        // If the key sees a query that is not finite, its row is right: the usual case in a step whose
        // gradients have overflowed.
        bool right = false;
        for (int i = static_cast<int>(a.query) - 1; i >= a.first_query(j, 1) && !right; --i)
            right = a.visible(at.b, at.h, i, j) &&
                    !(LaneRow<T, dim>(queries, i).finite() && LaneRow<T, dim>(gradients, i).finite());
        if (right) continue;
        key_result = value_result = LaneRow<T, dim>();
        for (int i = static_cast<int>(a.first_query(j, 1)); i < a.query; ++i) {
            if (!a.visible(at.b, at.h, i, j)) continue;
            const Statistics row = x.statistics.made[at.bh * x.statistics.stride + i];
            const bool keep = a.dropout.kept(a.weight(at.bh, i) + static_cast<std::uint64_t>(j));
            const float score = key.dot(LaneRow<T, dim>(queries, i)),
                        dp = keep ? value.dot(LaneRow<T, dim>(gradients, i)) * kept_scale : 0.0f;
            const float p = exp2_approximate((score - row.max) * (scale * log2_e) - row.log_sum);
            key_result.add(p * (dp - row.delta), queries, i);
            if (keep) value_result.add(p, gradients, i);
        }
        key_result.store(dk, at, j, scale);
        value_result.store(dv, at, j, kept_scale);
    }
}

template <class T, int dim> void run(const Attention& a, const Operands& x, Out out) {
    using Tile = GradientTiles<dim>;
    launch(flash_query_gradient_kernel<T, dim>, grid_for(FlashPlace::count(a, a.query, Tile::rows), 1),
           flash_threads, Tile::query_bytes(), a, x, head_rows(out[0]));
    launch(flash_key_gradient_kernel<T, dim>, grid_for(FlashPlace::count(a, a.key, Tile::rows), 1),
           flash_threads, Tile::key_bytes(), a, x, head_rows(out[1]), head_rows(out[2]));
    if (a.causal || a.mask.p != nullptr)
        launch(flash_key_redo_kernel<T, dim>, grid_for(FlashPlace::count(a, a.key, flash_warps), 1),
               flash_threads, 0, a, x, head_rows(out[1]), head_rows(out[2]));
}

template <class T> void run_dim(const Attention& a, const Operands& x, Out out) {
    if (a.dim == 32) return run<T, 32>(a, x, out);
    if (a.dim == 64) return run<T, 64>(a, x, out);
    run<T, 128>(a, x, out);
}

}  // namespace

bool flash_attention_backward(const Attention& a, In in, Out out) {
    const Dtype dtype = in[1].dtype();
    if (!flash_takes(a, in[1]) || out[0].dtype() != dtype) return false;
    for (int i = 0; i < 4; ++i)
        if (!flash_reads(in[std::size_t(i)], dtype)) return false;
    if (in[4].dtype() != dtype) return false;
    const std::int64_t rows = statistics_rows(a.query);
    const Scratch scratch(out[0].device(), a.batch * a.heads * rows * std::int64_t(sizeof(Statistics)));
    const Operands x{head_rows(in[0]), head_rows(in[1]), head_rows(in[2]), head_rows(in[3]),
                     statistics_source<float>(in, log2_e, scratch, rows)};
    dtype == float16 ? run_dim<float16_t>(a, x, out) : run_dim<bfloat16_t>(a, x, out);
    return true;
}

}  // namespace mezzo::cuda
