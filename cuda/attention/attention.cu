// scaled_dot_product_attention and its gradient for every dtype, dim and stride: FlashAttention-2's algorithm
// (Dao, arXiv 2307.08691) in ordinary float32 or float64 arithmetic. Scores exist in tiles of 32 x 32 only.
// flash_attention.cu does the same on Tensor Cores.
//
// Operations per (query, key) pair that is not skipped, in multiply-adds: forward 2 dim, gradient of q 3 dim,
// gradients of k and v 4 dim; 128 dimensions of the result per pass, with the scores computed again in each.
// Memory: each operand once per tile of 32 rows of the other side, results once, 8 bytes per query row, 16 in
// the gradient.
#include "cuda/attention/attention_tiles.cuh"
#include "cuda/kernels.h"
#include "kernels/functor_math.h"
#include "kernels/packed_attention.h"
#include "kernels/self_check.h"
#include "mezzo/device.h"

namespace mezzo::cuda {
namespace {

using namespace attention_tiles;

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

template <class C, int parts> __global__ void __launch_bounds__(threads)
    attention_kernel(Attention a, HeadRows q, HeadRows k, HeadRows v, HeadRows y, AnyArray<C> maxima,
                     AnyArray<C> totals) {
    MEZZO_SHARED(Tiles<C>, tiles, );
    for (std::int64_t index = blockIdx.x; index < ResultTile::count(a, a.query, parts * tile);
         index += gridDim.x) {
        const ResultTile at(a, index, a.query, parts * tile);
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

template <class C> void forward(const Attention& a, In in, Out out) {
    const AnyArray<C> none{nullptr, float32};
    with_parts(a, [&]<int parts>(std::integral_constant<int, parts>) {
        launch(attention_kernel<C, parts>, grid_for(ResultTile::count(a, a.query, parts * tile), 1), threads,
               0, a, head_rows(in[0]), head_rows(in[1]), head_rows(in[2]), head_rows(out[0]),
               out.size() > 1 ? any_of<C>(out[1]) : none, out.size() > 1 ? any_of<C>(out[2]) : none);
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
    any_float64(in, out) ? plain_backward<double>(a, in, out) : plain_backward<float>(a, in, out);
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

constinit const KernelList attention_list =
    kernel_list<scaled_dot_product_attention, scaled_dot_product_attention_grad, packed_attention,
                packed_attention_grad>;

}  // namespace mezzo::cuda_kernels
