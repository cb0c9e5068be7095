// Batch normalisation: two passes over the image each way, one for the sums over each channel, and one that
// computes element by element.
#include "kernels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "cpu/kernels.h"
#include "cpu/norm/channels.h"

namespace mezzo {
namespace {

using namespace cpu;

struct Statistics {
    std::vector<double> mean, variance;  // per channel, the biased variance
    double pixels;
};

template <class R> Statistics statistics_of(const ChannelLayout& layout, const Elements& x, Dtype dtype) {
    ChannelMoments moments = channel_moments<R>(layout, x, dtype, 0);
    const auto pixels = double(layout.pixels);
    if (layout.pixels > 0)
        for (double& v : moments.squares) v /= pixels;
    return {std::move(moments.mean), std::move(moments.squares), pixels};
}

// Whether all values stay finite as `dtype`.
bool all_finite(const std::vector<double>& values, Dtype dtype) {
    // Numbers up to half a step beyond the largest are rounded down to it.
    const double beyond = dtype_info(dtype).max * (1 + dtype_info(dtype).epsilon / 4);
    return std::all_of(values.begin(), values.end(), [&](double v) { return std::fabs(v) < beyond; });
}

std::vector<double> blended(const Tensor& running, const std::vector<double>& batch, double factor,
                            double share) {
    std::vector<double> values = values_of(running);
    for (std::size_t c = 0; c < values.size(); ++c)
        values[c] = (1 - share) * values[c] + share * (batch[c] * factor);
    return values;
}

// `dtype` is that of the arithmetic.
void update_running(In in, const kernels::BatchNorm& at, const Statistics& batch, Dtype dtype) {
    if (batch.pixels == 0 || !all_finite(batch.mean, dtype) || !all_finite(batch.variance, dtype)) return;
    std::int64_t* const batches = in[6].defined() ? reinterpret_cast<std::int64_t*>(in[6]->bytes()) : nullptr;
    const double share = std::isnan(at.momentum) ? 1 / double(*batches + 1) : at.momentum;
    const std::vector<double> mean = blended(in[4], batch.mean, 1, share),
                              variance =
                                  blended(in[5], batch.variance, batch.pixels / (batch.pixels - 1), share);
    if (!all_finite(mean, in[4]->dtype) || !all_finite(variance, in[5]->dtype)) return;
    if (batches) ++*batches;
    store_values(mean, in[4]);
    store_values(variance, in[5]);
}

// Computes y from the statistics. The mean is rounded to R; the shift holds the rounding error, so that a
// mean far from 0 costs the result no digits.
template <class R> void apply(const ChannelLayout& layout, In in, const kernels::BatchNorm& at, Out out,
                              const std::vector<double>& mean, const std::vector<double>& rstd, Dtype dtype) {
    const Elements x(in[0], dtype, 0), residual(in[3], dtype, 1), y(out[0], dtype, 2);
    const std::vector<double> weight = values_of(in[1]), bias = values_of(in[2]);
    std::vector<double> scale = rstd, shift = bias;
    for (std::size_t c = 0; c < scale.size(); ++c) {
        scale[c] *= weight[c];
        shift[c] -= (mean[c] - double(R(mean[c]))) * scale[c];
    }
    const std::vector<R> centres = layout.by_column<R>(mean), scales = layout.by_column<R>(scale),
                         shifts = layout.by_column<R>(shift);
    auto* const bits = at.relu && out.size() > 1 && out[1]->numel
                           ? reinterpret_cast<std::uint8_t*>(out[1]->bytes())
                           : nullptr;
    const auto run = channel_loops_for<R>(dtype).normalise;
    const bool direct = x.direct() && residual.direct() && y.direct();
    for_all_pieces(layout, direct, [&](std::int64_t i, std::int64_t n) {
        void* const to = y.open(i, n);
        run({x.read(i, n), residual.read(i, n), to, bits ? bits + i / 8 : nullptr, n, layout.columns,
             centres.data(), scales.data(), shifts.data(), at.relu});
        y.close(i, n, to);
    });
}

template <class R> void batch_norm_in(In in, const kernels::BatchNorm& at, Out out, Dtype dtype) {
    const ChannelLayout layout(in[0]->shape[0], in[0]->shape[1]);
    const Statistics s = at.batch_statistics
                             ? statistics_of<R>(layout, Elements(in[0], dtype, 0), dtype)
                             : Statistics{values_of(in[4]), values_of(in[5]), double(layout.pixels)};
    std::vector<double> rstd = s.variance;
    for (double& v : rstd) v = 1 / std::sqrt(v + at.eps);
    apply<R>(layout, in, at, out, s.mean, rstd, dtype);
    if (out.size() > 2) {
        store_values(s.mean, out[2]);
        store_values(rstd, out[3]);
    }
    if (at.update) update_running(in, at, s, sizeof(R) == 8 ? float64 : float32);
}

template <class R> void batch_norm_grad_in(In in, const kernels::BatchNormGrad& at, Out out, Dtype dtype) {
    const ChannelLayout layout(in[1]->shape[0], in[1]->shape[1]);
    const auto* const bits =
        in[3].defined() && in[3]->numel ? reinterpret_cast<const std::uint8_t*>(in[3]->bytes()) : nullptr;
    const GradImages images{Elements(in[0], dtype, 0), Elements(in[1], dtype, 1), bits, dtype};
    const std::vector<double> weight = values_of(in[2]), mean = values_of(in[4]), rstd = values_of(in[5]);
    const Elements masked(out[1], dtype, 2), dx(out[0], dtype, 2);
    ChannelGradSums s = channel_grad_sums<R>(layout, images, mean, out[1]->numel ? &masked : nullptr);
    const std::size_t channels = weight.size();
    GradCoefficients by{rstd, std::vector<double>(channels), std::vector<double>(channels)};
    for (std::size_t c = 0; c < channels; ++c) {
        s.products[c] *= rstd[c];
        by.scale[c] *= weight[c];
        if (!at.batch_statistics) continue;
        by.slope[c] = by.scale[c] * rstd[c] * s.products[c] / double(layout.pixels);
        by.offset[c] = by.scale[c] * s.sums[c] / double(layout.pixels);
    }
    write_x_grad<R>(layout, images, mean, by, dx);
    store_values(s.products, out[2]);
    store_values(s.sums, out[3]);
}

}  // namespace

namespace cpu_kernels {

void batch_norm(In in, const kernels::BatchNorm& at, Out out) {
    if (in[0]->shape[1] == 0) return;
    const Dtype dtype = common_dtype({in[0], in[3], out[0]});
    with_real(dtype, [&]<class R>(R) { batch_norm_in<R>(in, at, out, dtype); });
}
void batch_norm_grad(In in, const kernels::BatchNormGrad& at, Out out) {
    if (in[1]->numel == 0) {  // sums of nothing
        store_values(std::vector<double>(std::size_t(in[1]->shape[1])), out[2]);
        store_values(std::vector<double>(std::size_t(in[1]->shape[1])), out[3]);
        return;
    }
    const Dtype dtype = common_dtype({in[0], in[1], out[0]});
    with_real(dtype, [&]<class R>(R) { batch_norm_grad_in<R>(in, at, out, dtype); });
}

constinit const KernelList batch_norm_list = kernel_list<batch_norm, batch_norm_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
