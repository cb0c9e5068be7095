// Group normalisation: each sample is a separate image, whose channels' sums are joined to the groups'.
#include "kernels/batch_norm.h"

#include <cmath>

#include "cpu/kernels.h"
#include "cpu/norm/channels.h"

namespace mezzo {
namespace {

using namespace cpu;

struct Shapes {
    Shapes(const Tensor& x, std::int64_t group_count)
        : samples(x->shape[0]),
          groups(group_count),
          width(x->shape[2] / group_count),
          layout(x->shape[1], x->shape[2]) {}
    std::int64_t samples, groups, width;  // width: channels of a group
    ChannelLayout layout;

    std::size_t group_of(std::size_t channel) const { return channel / std::size_t(width); }
    // Number of values of a group, at least 1: sums over none are divided by it, and stay 0.
    double values() const { return double(std::max<std::int64_t>(1, layout.pixels * width)); }
};

struct GroupStatistics {
    std::vector<double> mean, variance;
};

// Joins the moments of channels to those of groups. All channels of a group have the same number of pixels.
GroupStatistics join_channels(const Shapes& shapes, const ChannelMoments& channels) {
    GroupStatistics s{std::vector<double>(std::size_t(shapes.groups)),
                      std::vector<double>(std::size_t(shapes.groups))};
    for (std::size_t c = 0; c < channels.mean.size(); ++c)
        s.mean[shapes.group_of(c)] += channels.mean[c] / double(shapes.width);
    for (std::size_t c = 0; c < channels.mean.size(); ++c) {
        const double apart = channels.mean[c] - s.mean[shapes.group_of(c)];
        s.variance[shapes.group_of(c)] +=
            (channels.squares[c] + double(shapes.layout.pixels) * apart * apart) / shapes.values();
    }
    return s;
}

// Runs over the samples in parallel if there are enough of them; otherwise the loops inside are parallel.
template <class F> void for_samples(const Shapes& shapes, const F& body) {
    const std::int64_t least = std::max<std::int64_t>(1, grain / (shapes.layout.elements + 1));
    const std::int64_t together = shapes.samples < cpu::num_threads() ? shapes.samples : least;
    parallel_for(shapes.samples, together, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t sample = begin; sample < end; ++sample) body(sample);
    });
}

void store_slice(const std::vector<double>& values, const Tensor& y, std::int64_t sample) {
    const auto n = std::int64_t(values.size());
    convert(values.data(), float64, y->bytes() + sample * n * std::int64_t(size_of(y->dtype)), y->dtype, n);
}
std::vector<double> slice_of(const Tensor& x, std::int64_t sample, std::int64_t n) {
    std::vector<double> values(static_cast<std::size_t>(n));
    convert(x->bytes() + sample * n * std::int64_t(size_of(x->dtype)), x->dtype, values.data(), float64, n);
    return values;
}

template <class R> void group_norm_in(In in, const kernels::GroupNorm& at, Out out, Dtype dtype) {
    const Shapes shapes(in[0], at.groups);
    const ChannelLayout& layout = shapes.layout;
    const Elements x(in[0], dtype, 0), y(out[0], dtype, 1);
    const std::vector<double> weight = values_of(in[1]), bias = values_of(in[2]);
    const auto run = channel_loops_for<R>(dtype).normalise;
    for_samples(shapes, [&](std::int64_t sample) {
        const std::int64_t offset = sample * layout.elements;
        const GroupStatistics s = join_channels(shapes, channel_moments<R>(layout, x, dtype, offset));
        std::vector<double> rstd = s.variance, mean(weight.size()), scale(weight), shift(bias);
        for (double& v : rstd) v = 1 / std::sqrt(v + at.eps);
        for (std::size_t c = 0; c < weight.size(); ++c) {
            mean[c] = s.mean[shapes.group_of(c)];
            scale[c] *= rstd[shapes.group_of(c)];
            shift[c] -= (mean[c] - double(R(mean[c]))) * scale[c];
        }
        const std::vector<R> centres = layout.by_column<R>(mean), scales = layout.by_column<R>(scale),
                             shifts = layout.by_column<R>(shift);
        for_all_pieces(layout, x.direct() && y.direct(), [&](std::int64_t i, std::int64_t n) {
            void* const to = y.open(offset + i, n);
            run({x.read(offset + i, n), nullptr, to, nullptr, n, layout.columns, centres.data(),
                 scales.data(), shifts.data(), false});
            y.close(offset + i, n, to);
        });
        if (out.size() < 3) return;
        store_slice(s.mean, out[1], sample);
        store_slice(rstd, out[2], sample);
    });
}

// Means over the values of each group of c and of c h, for c = g weight and h = (x - mean) rstd.
struct GroupSums {
    std::vector<double> of_c, of_ch;
};

template <class R> void group_norm_grad_in(In in, const kernels::GroupNormGrad& at, Out out, Dtype dtype) {
    const Shapes shapes(in[1], at.groups);
    const ChannelLayout& layout = shapes.layout;
    const Elements dx(out[0], dtype, 2);
    const std::vector<double> weight = values_of(in[2]);
    const std::size_t channels = weight.size(), groups = std::size_t(shapes.groups);
    std::vector<ChannelGradSums> parts(static_cast<std::size_t>(shapes.samples));
    for_samples(shapes, [&](std::int64_t sample) {
        const GradImages images{Elements(in[0], dtype, 0), Elements(in[1], dtype, 1), nullptr, dtype,
                                sample * layout.elements};
        const std::vector<double> means = slice_of(in[3], sample, shapes.groups),
                                  rstd = slice_of(in[4], sample, shapes.groups);
        std::vector<double> mean(channels);
        for (std::size_t c = 0; c < channels; ++c) mean[c] = means[shapes.group_of(c)];
        ChannelGradSums& s = parts[std::size_t(sample)];
        s = channel_grad_sums<R>(layout, images, mean, nullptr);
        GroupSums sums{std::vector<double>(groups), std::vector<double>(groups)};
        for (std::size_t c = 0; c < channels; ++c) {
            const std::size_t k = shapes.group_of(c);
            s.products[c] *= rstd[k];
            sums.of_c[k] += weight[c] * s.sums[c] / shapes.values();
            sums.of_ch[k] += weight[c] * s.products[c] / shapes.values();
        }
        GradCoefficients by{weight, std::vector<double>(channels), std::vector<double>(channels)};
        for (std::size_t c = 0; c < channels; ++c) {
            const std::size_t k = shapes.group_of(c);
            by.scale[c] *= rstd[k];
            by.slope[c] = rstd[k] * rstd[k] * sums.of_ch[k];
            by.offset[c] = rstd[k] * sums.of_c[k];
        }
        write_x_grad<R>(layout, images, mean, by, dx);
    });
    std::vector<double> weight_grad(channels), bias_grad(channels);
    for (const ChannelGradSums& s : parts)
        for (std::size_t c = 0; c < channels; ++c) {
            weight_grad[c] += s.products[c];
            bias_grad[c] += s.sums[c];
        }
    store_values(weight_grad, out[1]);
    store_values(bias_grad, out[2]);
}

}  // namespace

namespace cpu_kernels {

void group_norm(In in, const kernels::GroupNorm& at, Out out) {
    if (in[0]->shape[2] == 0) return;
    const Dtype dtype = common_dtype({in[0], out[0]});
    with_real(dtype, [&]<class R>(R) { group_norm_in<R>(in, at, out, dtype); });
}
void group_norm_grad(In in, const kernels::GroupNormGrad& at, Out out) {
    if (in[1]->numel == 0) {  // sums of nothing
        store_values(std::vector<double>(std::size_t(in[1]->shape[2])), out[1]);
        store_values(std::vector<double>(std::size_t(in[1]->shape[2])), out[2]);
        return;
    }
    const Dtype dtype = common_dtype({in[0], in[1], out[0]});
    with_real(dtype, [&]<class R>(R) { group_norm_grad_in<R>(in, at, out, dtype); });
}

constinit const KernelList group_norm_list = kernel_list<group_norm, group_norm_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
