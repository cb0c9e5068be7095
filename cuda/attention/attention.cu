// scaled_dot_product_attention and its gradient for every dtype, dim and stride: FlashAttention-2's algorithm
// (Dao, arXiv 2307.08691) in ordinary float32 or float64 arithmetic. Scores exist in tiles of 32 x 32 only.
// flash_attention.cu does the same on Tensor Cores.
//
// Operations per (query, key) pair that is not skipped, in multiply-adds: forward 2 dim, gradient of q 3 dim,
// gradients of k and v 4 dim; 128 dimensions of the result per pass, with the scores computed again in each.
// Memory: each operand once per tile of 32 rows of the other side, results once, 8 bytes per query row, 16 in
// the gradient.
#include "cuda/attention/attention.cuh"

#include "cuda/kernels.h"
#include "kernels/functor_math.h"
#include "kernels/packed_attention.h"
#include "kernels/proof.h"
#include "mezzo/device.h"

namespace mezzo::cuda {
namespace {

constexpr int tile = 32, warps = 4, warp_rows = tile / warps;
constexpr unsigned threads = 32 * warps;

// Parts of two operands, and the weights that threads exchange: 12.7 KB in float32, 25.3 KB in float64.
template <class C> struct Tiles { C a[tile][tile + 1], b[tile][tile + 1], w[tile][tile + 1]; };

// Copies `rows` rows of up to 32 elements, which begin `stride` elements apart at p[offset], to a tile; the
// rest of it becomes 0. Returns whether an element that this thread copied is NaN or infinite. One function
// for all callers: inlined into each, with a loop per dtype, it would be most of this file's code.
template <class C> __noinline__ __device__ bool stage_tile(C (&to)[tile][tile + 1], const void* p,
                                                           Dtype dtype, std::int64_t offset,
                                                           std::int64_t stride, std::int64_t rows,
                                                           std::int64_t columns) {
    const int c = static_cast<int>(threadIdx.x % 32);
    bool odd = false;
    for (int r = static_cast<int>(threadIdx.x / 32); r < tile; r += warps) {
        const bool there = r < rows && c < columns;
        to[r][c] = there ? load_as<C, Dtypes::floating>(p, dtype, offset + r * stride + c) : C(0);
        odd = odd || to[r][c] - to[r][c] != C(0);
    }
    return odd;
}

// Some rows of one head. Rows past `count` read as zeros.
template <class C> struct Operand {
    const HeadRows& x;
    std::int64_t offset, count, dim;

    __device__ Operand(const HeadRows& rows, std::int64_t b, std::int64_t h, std::int64_t length,
                       std::int64_t dims)
        : x(rows), offset(rows.offset(b, h)), count(length), dim(dims) {}

    // to[r][c] = element (first + r, column + c). Returns whether one that this thread copied is NaN or
    // infinite.
    __device__ bool stage(C (&to)[tile][tile + 1], std::int64_t first, std::int64_t column) const {
        return stage_tile(to, x.p, x.dtype, offset + first * x.length + column, x.length, count - first,
                          dim - column);
    }
};

// The first of this warp's rows in a tile.
__device__ int warp_row() { return static_cast<int>(threadIdx.x / 32) * warp_rows; }
__device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

// s[r] = row a0 + warp_row() + r of a times row b0 + lane() of b.
template <class C> __device__ void dots(Tiles<C>& t, const Operand<C>& a, std::int64_t a0,
                                        const Operand<C>& b, std::int64_t b0, C (&s)[warp_rows]) {
    for (C& sum : s) sum = 0;
    for (std::int64_t column = 0; column < a.dim; column += tile) {
        __syncthreads();  // all threads have read the old contents of the tiles
        a.stage(t.a, a0, column);
        b.stage(t.b, b0, column);
        __syncthreads();
        for (int c = 0; c < tile; ++c) {
            const C other = t.b[lane()][c];
            for (int r = 0; r < warp_rows; ++r) s[r] += t.a[warp_row() + r][c] * other;
        }
    }
}

// sum[r][n] += the sum over all lanes l of (w[r] of lane l) times element (b0 + l, column + 32 n + lane()) of
// b. Elements whose w is 0 are not read, because they may be NaN or infinite.
template <class C, int parts> __device__ void accumulate(Tiles<C>& t, const C (&w)[warp_rows],
                                                         const Operand<C>& b, std::int64_t b0,
                                                         std::int64_t column, C (&sum)[warp_rows][parts]) {
    MEZZO_UNROLL
    for (int n = 0; n < parts; ++n) {
        if (column + n * tile >= b.dim) continue;
        __syncthreads();
        if (n == 0)
            for (int r = 0; r < warp_rows; ++r) t.w[warp_row() + r][lane()] = w[r];
        if (__syncthreads_or(b.stage(t.b, b0, column + n * tile)) != 0) {
            for (int l = 0; l < tile; ++l)
                for (int r = 0; r < warp_rows; ++r)
                    if (t.w[warp_row() + r][l] != C(0)) sum[r][n] += t.w[warp_row() + r][l] * t.b[l][lane()];
            continue;
        }
        for (int l = 0; l < tile; ++l) {
            const C other = t.b[l][lane()];
            MEZZO_UNROLL
            for (int r = 0; r < warp_rows; ++r) sum[r][n] += t.w[warp_row() + r][l] * other;
        }
    }
}

// The tile of results that a block computes: rows from `first` of head h in batch b, dimensions from
// `column`.
struct Place {
    std::int64_t bh, b, h, first, column;

    __device__ Place(const Attention& a, std::int64_t index, std::int64_t length, std::int64_t columns) {
        const std::int64_t row_tiles = (length + tile - 1) / tile, passes = (a.dim + columns - 1) / columns;
        first = index % row_tiles * tile;
        column = index / row_tiles % passes * columns;
        bh = index / (row_tiles * passes);
        b = bh / a.heads;
        h = bh % a.heads;
    }
    static __host__ __device__ std::int64_t count(const Attention& a, std::int64_t length,
                                                  std::int64_t columns) {
        return a.batch * a.heads * ((length + tile - 1) / tile) * ((a.dim + columns - 1) / columns);
    }
};

// Stores sum[r] * factor[r] to out [batch, length, heads, dim].
template <class C, int parts> __device__ void store_rows(const Attention& a, const Place& place,
                                                         std::int64_t length,
                                                         const C (&sum)[warp_rows][parts],
                                                         const C (&factor)[warp_rows], const HeadRows& out) {
    const std::int64_t offset = out.offset(place.b, place.h);
    MEZZO_UNROLL
    for (int r = 0; r < warp_rows; ++r) {
        const std::int64_t row = place.first + warp_row() + r;
        MEZZO_UNROLL
        for (int n = 0; n < parts; ++n) {
            const std::int64_t column = place.column + n * tile + lane();
            if (row >= length || column >= a.dim) continue;
            store_as(out.p, out.dtype, offset + row * out.length + column, sum[r][n] * factor[r]);
        }
    }
}

// Turns one row's scores of a tile, one per lane, into weights exp(scale (score - max)), and updates the
// row's running maximum and this lane's share of the sum. Returns the factor by which earlier results must be
// multiplied.
template <class C> __device__ C online_softmax(C& score, C scale, C& max, C& sum) {
    const C before = max;
    max = Max()(before, warp_reduce(score, Max()));
    const C base = max == -static_cast<C>(INFINITY) ? C(0) : max;  // every key so far is hidden
    const C shrink = functors::math::exp(scale * (before - base));
    score = functors::math::exp(scale * (score - base));
    sum = sum * shrink + score;
    return shrink;
}

// The end of the keys that any of the queries first to first + tile - 1 attends to.
__device__ std::int64_t keys_seen(const Attention& a, std::int64_t first) { return a.keys_end(first, tile); }

template <class C, int parts> __global__ void __launch_bounds__(threads)
    attention_kernel(Attention a, HeadRows q, HeadRows k, HeadRows v, HeadRows y, AnyArray<C> maxima,
                     AnyArray<C> totals) {
    MEZZO_SHARED(Tiles<C>, tiles, );
    for (std::int64_t index = blockIdx.x; index < Place::count(a, a.query, parts * tile);
         index += gridDim.x) {
        const Place at(a, index, a.query, parts * tile);
        const Operand<C> queries(q, at.b, at.h, a.query, a.dim), keys(k, at.b, at.h, a.key, a.dim),
            values(v, at.b, at.h, a.key, a.dim);
        C result[warp_rows][parts] = {}, max[warp_rows], sum[warp_rows] = {};
        for (C& m : max) m = -static_cast<C>(INFINITY);
        for (std::int64_t j0 = 0; j0 < keys_seen(a, at.first); j0 += tile) {
            C w[warp_rows], shrink[warp_rows];
            dots(tiles, queries, at.first, keys, j0, w);
            for (int r = 0; r < warp_rows; ++r) {
                const std::int64_t i = at.first + warp_row() + r, j = j0 + lane();
                if (!a.visible(at.b, at.h, i, j)) w[r] = -static_cast<C>(INFINITY);
                shrink[r] = online_softmax(w[r], static_cast<C>(a.scale), max[r], sum[r]);
                if (!a.dropout.kept(a.weight(at.bh, i) + static_cast<std::uint64_t>(j))) w[r] = 0;
            }
            MEZZO_UNROLL
            for (int r = 0; r < warp_rows; ++r) {
                MEZZO_UNROLL
                for (int n = 0; n < parts; ++n) result[r][n] *= shrink[r];
            }
            accumulate(tiles, w, values, j0, at.column, result);
        }
        for (int r = 0; r < warp_rows; ++r) {
            const std::int64_t i = at.first + warp_row() + r;
            const C total = warp_reduce(sum[r], Sum());
            if (maxima.p != nullptr && lane() == 0 && at.column == 0 && i < a.query) {
                maxima.store(at.bh * a.query + i, max[r]);
                totals.store(at.bh * a.query + i, total);
            }
            sum[r] = total == C(0) ? C(0) : static_cast<C>(a.dropout.scale) / total;
        }
        store_rows(a, at, a.query, result, sum, y);
    }
}

// The weight p of a pair and, from dp = g v^T, the gradient ds of its score (before the scale).
template <class C> struct PairGradient {
    C dropped_p, ds;

    __device__ PairGradient(const Attention& a, const Place& at, std::int64_t i, std::int64_t j, C score,
                            C dp, const RowStatistics<C>& row) {
        const bool kept = a.dropout.kept(a.weight(at.bh, i) + static_cast<std::uint64_t>(j));
        const C scale = kept ? static_cast<C>(a.dropout.scale) : C(0);
        dropped_p = ds = C(0);
        if (!a.visible(at.b, at.h, i, j)) return;  // dp may be NaN
        const C p = functors::math::exp((score - row.max) * static_cast<C>(a.scale) - row.log_sum);
        dropped_p = p * scale;
        ds = p * (dp * scale - row.delta);
    }
};

// Computes the statistics of this warp's rows into to[warp_row() + r]. The first of the passes over the
// dimensions also stores them for the gradients of the keys.
template <class C> __device__ void make_statistics(const Attention& a, const Place& at,
                                                   const StatisticsSource<C>& from,
                                                   RowStatistics<C> (&to)[tile]) {
    const std::int64_t first = at.first + warp_row(), left = a.query - first;
    const int rows = left < warp_rows ? static_cast<int>(left) : warp_rows;
    C own = 0;
    for (int r = 0; r < rows; ++r) {
        const C delta = from.delta(true, at.b, at.h, first + r, a.dim, [](const HeadRows& x, std::int64_t n) {
            return load_as<C>(x.p, x.dtype, n);
        });
        if (lane() == r) own = delta;
    }
    __syncwarp();  // all lanes have read the statistics of the previous index
    if (lane() < warp_rows) {
        const RowStatistics<C> row = from.finish(a, at.bh, first + lane(), own);
        to[warp_row() + lane()] = row;
        if (at.column == 0) from.made[at.bh * from.stride + first + lane()] = row;
    }
    __syncwarp();
}

// dq = scale ds k.
template <class C, int parts> __global__ void __launch_bounds__(threads)
    query_gradient_kernel(Attention a, HeadRows g, HeadRows q, HeadRows k, HeadRows v,
                          StatisticsSource<C> source, HeadRows dq) {
    MEZZO_SHARED(Tiles<C>, tiles, );
    MEZZO_SHARED(RowStatistics<C>, statistics, [tile]);
    for (std::int64_t index = blockIdx.x; index < Place::count(a, a.query, parts * tile);
         index += gridDim.x) {
        const Place at(a, index, a.query, parts * tile);
        const Operand<C> queries(q, at.b, at.h, a.query, a.dim), keys(k, at.b, at.h, a.key, a.dim),
            values(v, at.b, at.h, a.key, a.dim), gradients(g, at.b, at.h, a.query, a.dim);
        C result[warp_rows][parts] = {}, factor[warp_rows];
        make_statistics(a, at, source, statistics);
        for (std::int64_t j0 = 0; j0 < keys_seen(a, at.first); j0 += tile) {
            C s[warp_rows], dp[warp_rows];
            dots(tiles, queries, at.first, keys, j0, s);
            dots(tiles, gradients, at.first, values, j0, dp);
            for (int r = 0; r < warp_rows; ++r)
                s[r] = PairGradient<C>(a, at, at.first + warp_row() + r, j0 + lane(), s[r], dp[r],
                                       statistics[warp_row() + r])
                           .ds;
            accumulate(tiles, s, keys, j0, at.column, result);
        }
        for (C& f : factor) f = static_cast<C>(a.scale);
        store_rows(a, at, a.query, result, factor, dq);
    }
}

// dv = d(p)^T g and dk = scale ds^T q, where d is dropout.
template <class C, int parts> __global__ void __launch_bounds__(threads)
    key_gradient_kernel(Attention a, HeadRows g, HeadRows q, HeadRows k, HeadRows v,
                        const RowStatistics<C>* statistics, std::int64_t statistics_stride, HeadRows dk,
                        HeadRows dv) {
    MEZZO_SHARED(Tiles<C>, tiles, );
    for (std::int64_t index = blockIdx.x; index < Place::count(a, a.key, parts * tile); index += gridDim.x) {
        const Place at(a, index, a.key, parts * tile);
        const Operand<C> queries(q, at.b, at.h, a.query, a.dim), keys(k, at.b, at.h, a.key, a.dim),
            values(v, at.b, at.h, a.key, a.dim), gradients(g, at.b, at.h, a.query, a.dim);
        const RowStatistics<C>* rows = statistics + at.bh * statistics_stride;
        C key_result[warp_rows][parts] = {}, value_result[warp_rows][parts] = {}, factor[warp_rows];
        for (std::int64_t i0 = a.first_query(at.first, tile); i0 < a.query; i0 += tile) {
            C s[warp_rows], dp[warp_rows];
            dots(tiles, keys, at.first, queries, i0, s);
            dots(tiles, values, at.first, gradients, i0, dp);
            for (int r = 0; r < warp_rows; ++r) {
                const std::int64_t i = i0 + lane(), j = at.first + warp_row() + r;
                const PairGradient<C> pair(a, at, i, j, s[r], dp[r], rows[i]);
                s[r] = pair.dropped_p;
                dp[r] = pair.ds;
            }
            accumulate(tiles, s, gradients, i0, at.column, value_result);
            accumulate(tiles, dp, queries, i0, at.column, key_result);
        }
        for (C& f : factor) f = static_cast<C>(a.scale);
        store_rows(a, at, a.key, key_result, factor, dk);
        for (C& f : factor) f = C(1);
        store_rows(a, at, a.key, value_result, factor, dv);
    }
}

// Calls run with the number of 32-column parts of a pass as a constant: 2 for dim up to 64, else 4.
template <class Run> void with_parts(const Attention& a, const Run& run) {
    if (a.dim <= 2 * tile)
        run(std::integral_constant<int, 2>());
    else
        run(std::integral_constant<int, 4>());
}

template <class C> void forward(const Attention& a, In in, Out out) {
    const AnyArray<C> none{nullptr, float32};
    with_parts(a, [&]<int parts>(std::integral_constant<int, parts>) {
        launch(attention_kernel<C, parts>, grid_for(Place::count(a, a.query, parts * tile), 1), threads, 0, a,
               head_rows(in[0]), head_rows(in[1]), head_rows(in[2]), head_rows(out[0]),
               out.size() > 1 ? any_of<C>(out[1]) : none, out.size() > 1 ? any_of<C>(out[2]) : none);
    });
}

template <class C> void backward(const Attention& a, In in, Out out) {
    const std::int64_t rows = statistics_rows(a.query);
    const Scratch scratch(out[0].device(), a.batch * a.heads * rows * std::int64_t(sizeof(RowStatistics<C>)));
    const StatisticsSource<C> source = statistics_source<C>(in, 1, scratch, rows);
    const HeadRows g = head_rows(in[0]), q = head_rows(in[1]), k = head_rows(in[2]), v = head_rows(in[3]);
    with_parts(a, [&]<int parts>(std::integral_constant<int, parts>) {
        launch(query_gradient_kernel<C, parts>, grid_for(Place::count(a, a.query, parts * tile), 1), threads,
               0, a, g, q, k, v, source, head_rows(out[0]));
        launch(key_gradient_kernel<C, parts>, grid_for(Place::count(a, a.key, parts * tile), 1), threads, 0,
               a, g, q, k, v, source.made, rows, head_rows(out[1]), head_rows(out[2]));
    });
}

bool uses_flash(FastPathId path, const Attention& a, const Tensor& q) {
    return flash_takes(a, q) &&
           uses_fast_path(flash_attention(), path, q.device(), q.dtype(), static_cast<int>(a.dim));
}

bool any_float64(In in, Out out) {
    for (In tensors : {in, In(out)})
        for (const Tensor& x : tensors)
            if (x.defined() && x.dtype() == float64) return true;
    return false;
}

}  // namespace

Attention attention_problem(const Tensor& q, const Tensor& k, const Tensor& mask,
                            const kernels::ScaledDotProductAttention& at) {
    Attention a{q.size(0), q.size(2), q.size(1), k.size(1), q.size(3), {}, {}, std::fmax(at.scale, 1e-37),
                at.causal};
    if (mask.defined()) {
        const Strides& s = mask.strides();
        a.mask = {static_cast<const bool*>(raw(mask)), s[0], s[1], s[2], s[3]};
    }
    a.dropout = {stream_of(at.stream), static_cast<std::uint32_t>(std::lround(at.dropout_p * 65536.0)),
                 1 / (1 - at.dropout_p)};
    return a;
}

bool attention_forward(In in, const kernels::ScaledDotProductAttention& at, Out out, AttentionWay way) {
    const Attention a = attention_problem(in[0], in[1], in[3], at);
    if (way == AttentionWay::flash) return flash_attention_forward(a, in, out);
    any_float64(in, out) ? forward<double>(a, in, out) : forward<float>(a, in, out);
    return true;
}

bool attention_backward(In in, const kernels::ScaledDotProductAttentionGrad& at, Out out, AttentionWay way) {
    const Attention a = attention_problem(in[1], in[2], in[7], at.forward);
    if (way == AttentionWay::flash) return flash_attention_backward(a, in, out);
    any_float64(in, out) ? backward<double>(a, in, out) : backward<float>(a, in, out);
    return true;
}

}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void scaled_dot_product_attention(In in, const kernels::ScaledDotProductAttention& at, Out out) {
    use_device_of(out[0]);
    const Attention a = attention_problem(in[0], in[1], in[3], at);
    if (uses_flash(FastPathId::flash_attention, a, in[0]) && flash_attention_forward(a, in, out)) return;
    attention_forward(in, at, out, AttentionWay::plain);
}

void scaled_dot_product_attention_grad(In in, const kernels::ScaledDotProductAttentionGrad& at, Out out) {
    use_device_of(out[0]);
    const Attention a = attention_problem(in[1], in[2], in[7], at.forward);
    if (uses_flash(FastPathId::flash_attention_grad, a, in[1]) && flash_attention_backward(a, in, out))
        return;
    attention_backward(in, at, out, AttentionWay::plain);
}

void packed_attention(In in, const kernels::PackedAttention& at, Out out) {
    kernels::run_packed_attention(in, at, out, scaled_dot_product_attention);
}

void packed_attention_grad(In in, const kernels::PackedAttentionGrad& at, Out out) {
    kernels::run_packed_attention_grad(in, at, out, scaled_dot_product_attention_grad);
}

constexpr KernelEntry entries[] = {kernel_entry<scaled_dot_product_attention>(),
                                   kernel_entry<scaled_dot_product_attention_grad>(),
                                   kernel_entry<packed_attention>(), kernel_entry<packed_attention_grad>()};
constinit const KernelList attention_list = entries;

}  // namespace mezzo::cuda_kernels
