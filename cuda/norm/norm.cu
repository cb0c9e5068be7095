// layer_norm, rms_norm and dropout_add_layer_norm. A row is read once and stays in registers, with two
// reductions over it. Other shapes and dtypes read a row three times, from the cache after the first.
#include "cuda/kernels.h"
#include "cuda/norm/norm.cuh"

#include <cmath>
#include <initializer_list>

namespace mezzo::cuda {

Dropping dropping(const kernels::DropoutAddLayerNorm& at) {
    return {stream_of(at.stream), static_cast<std::uint32_t>(std::lround(at.dropout_p * 65536.0)),
            static_cast<float>(1 / (1 - at.dropout_p))};
}

namespace {

// The values to normalise: those of x.
template <class X> struct Plain {
    const X* x;
    __device__ void load(std::int64_t i, std::int64_t, float (&values)[pack]) const {
        load_pack(x, i, values);
    }
};
// dropout(x + bias) + residual, which is also stored in z unless that is null.
template <class X, class R, class P> struct DroppedSum {
    const X* x;
    const P* bias;  // none: null
    const R* residual;
    float* z;
    Dropping dropping;
    __device__ void load(std::int64_t i, std::int64_t column, float (&values)[pack]) const {
        float added[pack];
        load_pack(x, i, values);
        load_pack(residual, i, added);
        if (bias != nullptr) {
            float b[pack];
            load_pack(bias, column, b);
            for (int k = 0; k < pack; ++k) values[k] += b[k];
        }
        dropping.apply(i, values);
        for (int k = 0; k < pack; ++k) values[k] += added[k];
        if (z != nullptr) store_pack(z, i, values);
    }
};

template <class C> struct NormArgs {
    AnyArray<C> weight, bias;  // no bias: null
    AnyArray<C> copy;          // y once more, in 16 bit; none: null
    void *mean, *rstd;         // C, or null
    std::int64_t rows, cols;
    C eps;
    bool centred;
};

// Scale of a row's normalisation, from the sums of c and c^2 with c = x - shift. That shift is a rounded mean
// costs no accuracy (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983).
template <class C> struct Scale {
    C shift, rest, rstd;
    __device__ Scale(const NormArgs<C>& a, C shift_, const TwoSums<C>& sums)
        : shift(shift_), rest(a.centred ? sums.first / static_cast<C>(a.cols) : C(0)) {
        const C variance = sums.second / static_cast<C>(a.cols) - rest * rest;
        rstd = C(1) / functors::math::sqrt((variance < C(0) ? C(0) : variance) + a.eps);
    }
    __device__ C operator()(C x) const { return (x - shift - rest) * rstd; }
    __device__ void keep(const NormArgs<C>& a, std::int64_t row) const {
        if (a.mean != nullptr) static_cast<C*>(a.mean)[row] = shift + rest;
        if (a.rstd != nullptr) static_cast<C*>(a.rstd)[row] = rstd;
    }
};

// The row is an array that is indexed by unrolled loops only, so that it lies in registers. The dtype P of
// weight and bias is known when the kernel is compiled, because a choice in each unrolled access would be a
// hundred times the code.
template <class Team, int packs, class P, class Source, class Y>
__global__ __launch_bounds__(longest_block, 1) void norm_kernel(Source source, Y* y, NormArgs<float> a) {
    const P *const weights = static_cast<const P*>(a.weight.p), *const biases =
                                                                    static_cast<const P*>(a.bias.p);
    for (std::int64_t row = Team::first_row(); row < a.rows; row += Team::row_step()) {
        float v[packs][pack];
        float sum = 0;
        MEZZO_UNROLL
        for (int p = 0; p < packs; ++p) {
            const std::int64_t column = pack_column<Team>(p);
            for (int k = 0; k < pack; ++k) v[p][k] = 0;
            if (column < a.cols) source.load(row * a.cols + column, column, v[p]);
            for (int k = 0; k < pack; ++k) sum += v[p][k];
        }
        const float shift = a.centred ? Team::reduce(sum, 0.0f, Sum()) / static_cast<float>(a.cols) : 0.0f;
        TwoSums<float> sums{0, 0};
        MEZZO_UNROLL
        for (int p = 0; p < packs; ++p) {
            if (pack_column<Team>(p) >= a.cols) continue;
            for (int k = 0; k < pack; ++k) {
                const float c = v[p][k] - shift;
                sums.first += c;
                sums.second += c * c;
            }
        }
        const Scale<float> scale(a, shift, Team::reduce(sums, TwoSums<float>{0, 0}, AddTwo()));
        if (Team::rank() == 0) scale.keep(a, row);
        MEZZO_UNROLL
        for (int p = 0; p < packs; ++p) {
            const std::int64_t column = pack_column<Team>(p);
            if (column >= a.cols) continue;
            float weight[pack], bias[pack] = {};
            load_pack(weights, column, weight);
            if (biases != nullptr) load_pack(biases, column, bias);
            for (int k = 0; k < pack; ++k) v[p][k] = scale(v[p][k]) * weight[k] + bias[k];
            store_pack(y, row * a.cols + column, v[p]);
            if constexpr (std::is_same_v<Y, float>)
                if (a.copy.p != nullptr) store_pack(a.copy, row * a.cols + column, v[p]);
        }
    }
}

// Any dtypes, any number of columns.
template <class Team, class C> __global__ void norm_any_kernel(AnyArray<C> x, AnyArray<C> y, NormArgs<C> a) {
    for (std::int64_t row = Team::first_row(); row < a.rows; row += Team::row_step()) {
        const std::int64_t base = row * a.cols;
        BlockedSum<C> sum, first, second;
        if (a.centred)
            for (std::int64_t j = Team::rank(); j < a.cols; j += Team::size()) sum.add(x.load(base + j));
        const C shift = Team::reduce(sum.get(), C(0), Sum()) / static_cast<C>(a.cols);
        for (std::int64_t j = Team::rank(); j < a.cols; j += Team::size()) {
            const C c = x.load(base + j) - shift;
            first.add(c);
            second.add(c * c);
        }
        const TwoSums<C> sums{first.get(), second.get()};
        const Scale<C> scale(a, shift, Team::reduce(sums, TwoSums<C>{0, 0}, AddTwo()));
        if (Team::rank() == 0) scale.keep(a, row);
        for (std::int64_t j = Team::rank(); j < a.cols; j += Team::size()) {
            const C bias = a.bias.p != nullptr ? a.bias.load(j) : C(0);
            y.store(base + j, scale(x.load(base + j)) * a.weight.load(j) + bias);
            if (a.copy.p != nullptr) a.copy.store(base + j, y.load(base + j));
        }
    }
}

// z = dropout(x + bias) + residual in any dtypes; a thread takes the eight elements of a Philox block.
template <class C> __global__ void dropped_sum_kernel(AnyArray<C> x, AnyArray<C> bias, AnyArray<C> residual,
                                                      AnyArray<C> z, std::int64_t n, std::int64_t cols,
                                                      Dropping dropping, C scale) {
    for (std::int64_t block = first_item(); block * 8 < n; block += item_step()) {
        const PhiloxWords words = dropping.stream.block(block);
        for (std::int64_t i = block * 8; i < block * 8 + 8 && i < n; ++i) {
            C value = x.load(i);
            if (bias.p != nullptr) value += bias.load(i % cols);
            const bool keep = half_word(words, static_cast<int>(i % 8)) >= dropping.threshold;
            z.store(i, (keep ? value * scale : C(0)) + residual.load(i));
        }
    }
}

template <class C> AnyArray<C> any_or_null(const Tensor& x) {
    return x.defined() ? any_of<C>(x) : AnyArray<C>{nullptr, float32};
}
void* raw_or_null(const Tensor& x) { return x.defined() ? raw(x) : nullptr; }

template <class C> NormArgs<C> norm_args(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                         const Tensor& copy, const Tensor& mean, const Tensor& rstd,
                                         double eps, bool centred) {
    const Rows rows = rows_along(x.shape(), x.dim() - 1);
    return {any_of<C>(weight), any_or_null<C>(bias), any_or_null<C>(copy),
            raw_or_null(mean), raw_or_null(rstd),    rows.rows,
            rows.cols,         static_cast<C>(eps),  centred};
}

template <class C> void norm_any(const Tensor& x, const Tensor& y, const NormArgs<C>& a) {
    with_row_team({a.rows, a.cols, 1}, [&](auto team, unsigned grid, unsigned block) {
        launch(norm_any_kernel<decltype(team), C>, grid, block, 0, any_of<C>(x), any_of<C>(y), a);
    });
}

template <class P, class Y, class Source>
bool norm_packs(const Source& source, const Tensor& y, const NormArgs<float>& a) {
    Y* const to = static_cast<Y*>(raw(y));
    const unsigned warps = grid_for(a.rows * 32, rows_block), block = block_over(a.cols);
    if (a.cols <= 32 * 4 * pack)
        launch(norm_kernel<WarpTeam, 4, P, Source, Y>, warps, rows_block, 0, source, to, a);
    else if (a.cols <= warp_cols)
        launch(norm_kernel<WarpTeam, 8, P, Source, Y>, warps, rows_block, 0, source, to, a);
    else
        launch(norm_kernel<BlockTeam, 4, P, Source, Y>, grid_for(a.rows, 1), block, 0, source, to, a);
    return true;
}

// Whether the tensors that there are have the dtype T.
template <class T> bool all_are(std::initializer_list<Tensor> tensors) {
    for (const Tensor& x : tensors)
        if (x.defined() && x.dtype() != dtype_of<T>()) return false;
    return true;
}

// X, Y, P: of the input, the result, and weight and bias.
template <class X, class Y, class P>
bool plain_packs(In in, const Tensor& bias, const Tensor& y, const NormArgs<float>& a) {
    if (!all_are<X>({in[0]}) || !all_are<Y>({y}) || !all_are<P>({in[1], bias})) return false;
    return norm_packs<P, Y>(Plain<X>{static_cast<const X*>(raw(in[0]))}, y, a);
}

void normalise(In in, double eps, Out out, bool centred) {
    use_device_of(out[0]);
    const Tensor copy = kernels::taken_copy(out);
    const Tensor &x = in[0], &y = out[0];
    if (y.numel() == 0) return;
    const Tensor bias = centred ? in[2] : Tensor(), mean = centred && out.size() > 1 ? out[1] : Tensor(),
                 rstd = out.size() > 1 ? out.back() : Tensor();
    if (compute_kind({x.dtype(), y.dtype()}) == ComputeKind::float64)
        return norm_any(x, y, norm_args<double>(x, in[1], bias, copy, mean, rstd, eps, centred));
    const auto a = norm_args<float>(x, in[1], bias, copy, mean, rstd, eps, centred);
    const Tensor used[] = {x, in[1], bias, y, copy};
    if (a.cols <= longest_in_registers && packs_fit(a.cols, used) &&
        (plain_packs<float, float, float>(in, bias, y, a) ||
         plain_packs<float16_t, float16_t, float16_t>(in, bias, y, a) ||
         plain_packs<float16_t, float16_t, float>(in, bias, y, a) ||
         plain_packs<bfloat16_t, bfloat16_t, bfloat16_t>(in, bias, y, a) ||
         plain_packs<bfloat16_t, bfloat16_t, float>(in, bias, y, a) ||
         plain_packs<float16_t, float, float>(in, bias, y, a) ||
         plain_packs<bfloat16_t, float, float>(in, bias, y, a)))
        return;
    norm_any(x, y, a);
}

// The inputs and results of dropout_add_layer_norm by name.
struct DroppedNorm {
    Tensor weight, x, x_bias, residual, bias, copy, y, z, mean, rstd;
    DroppedNorm(In in, Out out)
        : weight(in[0]),
          x(in[1]),
          x_bias(in[2]),
          residual(in[3]),
          bias(in[4]),
          copy(kernels::taken_copy(out)),
          y(out[0]) {
        if (out.size() < 2) return;
        z = out[1];
        mean = out[2];
        rstd = out[3];
    }
};

template <class X, class R, class Y, class P>
bool dropped_packs(const DroppedNorm& t, const kernels::DropoutAddLayerNorm& at, const NormArgs<float>& a) {
    if (!all_are<X>({t.x}) || !all_are<R>({t.residual}) || !all_are<Y>({t.y}) ||
        !all_are<P>({t.weight, t.bias, t.x_bias}))
        return false;
    const DroppedSum<X, R, P> source{
        static_cast<const X*>(raw(t.x)), static_cast<const P*>(raw_or_null(t.x_bias)),
        static_cast<const R*>(raw(t.residual)), static_cast<float*>(raw_or_null(t.z)), dropping(at)};
    return norm_packs<P, Y>(source, t.y, a);
}

template <class C>
void dropped_any(const DroppedNorm& t, const kernels::DropoutAddLayerNorm& at, const NormArgs<C>& a) {
    const Tensor z =
        t.z.defined() ? t.z : empty(t.x.shape(), {.dtype = dtype_of<C>(), .device = t.x.device()});
    launch(dropped_sum_kernel<C>, grid_for((t.x.numel() + 7) / 8, rows_block), rows_block, 0, any_of<C>(t.x),
           any_or_null<C>(t.x_bias), any_of<C>(t.residual), any_of<C>(z), t.x.numel(), a.cols, dropping(at),
           static_cast<C>(1 / (1 - at.dropout_p)));
    norm_any(z, t.y, a);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void layer_norm(In in, const kernels::LayerNorm& at, Out out) { normalise(in, at.eps, out, true); }
void rms_norm(In in, const kernels::RmsNorm& at, Out out) { normalise(in, at.eps, out, false); }

void dropout_add_layer_norm(In in, const kernels::DropoutAddLayerNorm& at, Out out) {
    use_device_of(out[0]);
    const DroppedNorm t(in, out);
    if (t.y.numel() == 0) return;
    if (compute_kind({t.x.dtype(), t.residual.dtype(), t.y.dtype()}) == ComputeKind::float64)
        return dropped_any(t, at,
                           norm_args<double>(t.x, t.weight, t.bias, t.copy, t.mean, t.rstd, at.eps, true));
    const auto a = norm_args<float>(t.x, t.weight, t.bias, t.copy, t.mean, t.rstd, at.eps, true);
    const Tensor used[] = {t.weight, t.x, t.x_bias, t.residual, t.bias, t.y, t.copy, t.z};
    if (a.cols <= longest_in_registers && packs_fit(a.cols, used) &&
        (dropped_packs<float, float, float, float>(t, at, a) ||
         dropped_packs<float16_t, float16_t, float16_t, float16_t>(t, at, a) ||
         dropped_packs<float16_t, float16_t, float16_t, float>(t, at, a) ||
         dropped_packs<bfloat16_t, bfloat16_t, bfloat16_t, bfloat16_t>(t, at, a) ||
         dropped_packs<bfloat16_t, bfloat16_t, bfloat16_t, float>(t, at, a) ||
         dropped_packs<float16_t, float, float, float>(t, at, a) ||
         dropped_packs<bfloat16_t, float, float, float>(t, at, a)))
        return;
    dropped_any(t, at, a);
}

constinit const KernelList norm_list = kernel_list<layer_norm, rms_norm, dropout_add_layer_norm>;

}  // namespace mezzo::cuda_kernels
