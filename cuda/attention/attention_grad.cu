// The gradients of scaled_dot_product_attention in ordinary float32 or float64 arithmetic. attention.cu says
// what they cost.
#include "cuda/attention/attention_tiles.cuh"
#include "kernels/functor_math.h"

namespace mezzo::cuda {
namespace {

using namespace attention_tiles;

// The weight p of a pair and, from dp = g v^T, the gradient ds of its score (before the scale).
template <class C> struct PairGradient {
    C dropped_p, ds;

    __device__ PairGradient(const Attention& a, const ResultTile& at, std::int64_t i, std::int64_t j, C score,
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
template <class C> __device__ void make_statistics(const Attention& a, const ResultTile& at,
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
    for (std::int64_t index = blockIdx.x; index < ResultTile::count(a, a.query, parts * tile);
         index += gridDim.x) {
        const ResultTile at(a, index, a.query, parts * tile);
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
    for (std::int64_t index = blockIdx.x; index < ResultTile::count(a, a.key, parts * tile);
         index += gridDim.x) {
        const ResultTile at(a, index, a.key, parts * tile);
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

}  // namespace

template <class C> void plain_backward(const Attention& a, In in, Out out) {
    const std::int64_t rows = statistics_rows(a.query);
    const Scratch scratch(out[0].device(), a.batch * a.heads * rows * std::int64_t(sizeof(RowStatistics<C>)));
    const StatisticsSource<C> source = statistics_source<C>(in, 1, scratch, rows);
    const HeadRows g = head_rows(in[0]), q = head_rows(in[1]), k = head_rows(in[2]), v = head_rows(in[3]);
    with_parts(a, [&]<int parts>(std::integral_constant<int, parts>) {
        launch(query_gradient_kernel<C, parts>, grid_for(ResultTile::count(a, a.query, parts * tile), 1),
               threads, 0, a, g, q, k, v, source, head_rows(out[0]));
        launch(key_gradient_kernel<C, parts>, grid_for(ResultTile::count(a, a.key, parts * tile), 1), threads,
               0, a, g, q, k, v, source.made, rows, head_rows(out[1]), head_rows(out[2]));
    });
}

template void plain_backward<float>(const Attention& a, In in, Out out);
template void plain_backward<double>(const Attention& a, In in, Out out);

}  // namespace mezzo::cuda
