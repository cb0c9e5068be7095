// batch_norm_grad: one launch for the sums over each channel, which are the gradients of weight and bias, and
// one for the gradient of the image.
#include "kernels/batch_norm.h"

#include "cuda/kernels.h"
#include "cuda/norm/channels.cuh"

namespace mezzo::cuda {
namespace {

// dx = g scale - (x - mean) slope - offset
template <class C> struct Slopes { C *mean, *scale, *slope, *offset; };

template <class C> struct GradConclusion {
    Slopes<C> by;
    AnyArray<C> weight, mean, rstd, of_weight, of_bias;
    bool batch_statistics;
};

template <class X> struct GradImages {
    X g, x, masked, dx;        // masked: g with zeros, or null
    const std::uint8_t* bits;  // or null: all are set
};

enum PartVector { of_sum, of_product, part_vectors };

template <class X, class C = typename X::C>
__device__ void join_parts(const PartSums<C>& parts, const ChannelGrid& s, const GradConclusion<C>& end) {
    const Finisher<X::width> f(s);
    const auto sum_of = [&](int vector) {
        return f.sum(
            s, [&](std::int64_t part) { return parts.at(part, vector, f.channel); }, std::type_identity<C>());
    };
    const C sum = sum_of(of_sum), product = sum_of(of_product);
    if (f.way != 0 || f.channel >= s.channels) return;
    const std::int64_t c = f.channel;
    const C rstd = end.rstd.load(c), along = product * rstd, scale = rstd * end.weight.load(c);
    end.of_weight.store(c, along);
    end.of_bias.store(c, sum);
    const C rows = static_cast<C>(s.rows);
    end.by.mean[c] = end.mean.load(c);
    end.by.scale[c] = scale;
    end.by.slope[c] = end.batch_statistics ? scale * rstd * (along / rows) : C(0);
    end.by.offset[c] = end.batch_statistics ? scale * (sum / rows) : C(0);
}

template <class X, class C = typename X::C>
__global__ __launch_bounds__(channels_block,
                             2) void grad_sums_kernel(GradImages<X> images, ChannelGrid s, PartSums<C> parts,
                                                      GradConclusion<C> end, unsigned* tickets) {
    constexpr int width = X::width;
    const ChannelPosition<width> at(s);
    const std::int64_t begin = blockIdx.y * s.part_rows, stop = begin + s.rows_of(blockIdx.y);
    C sums[2 * width] = {}, mean[width] = {};
    const bool inside = at.channel < s.channels;
    if (inside) {
        for (int k = 0; k < width; ++k) mean[k] = end.mean.load(at.channel + k);
        for (std::int64_t row = begin + at.way; row < stop; row += rows_in_flight * at.ways) {
            C g[rows_in_flight][width], x[rows_in_flight][width];
            MEZZO_UNROLL
            for (int u = 0; u < rows_in_flight; ++u) {
                if (row + u * at.ways >= stop) break;
                const std::int64_t i = (row + u * at.ways) * s.channels + at.channel;
                images.g.load(i, g[u]);
                images.x.load(i, x[u]);
                apply_bits(images.bits, i, g[u]);
            }
            MEZZO_UNROLL
            for (int u = 0; u < rows_in_flight; ++u) {
                if (row + u * at.ways >= stop) break;
                if (images.masked.p != nullptr)
                    images.masked.store((row + u * at.ways) * s.channels + at.channel, g[u]);
                MEZZO_UNROLL
                for (int k = 0; k < width; ++k) {
                    sums[k] += g[u][k];
                    sums[width + k] += g[u][k] * (x[u][k] - mean[k]);
                }
            }
        }
    }
    add_ways(sums, s.lanes);
    if (at.way == 0 && inside)
        for (int k = 0; k < width; ++k) {
            parts.at(blockIdx.y, of_sum, at.channel + k) = sums[k];
            parts.at(blockIdx.y, of_product, at.channel + k) = sums[width + k];
        }
    if (last_of(tickets + blockIdx.x, gridDim.y)) join_parts<X>(parts, s, end);
}

template <class X, class C = typename X::C>
__global__ __launch_bounds__(channels_block) void normalise_grad_kernel(GradImages<X> images, ChannelGrid s,
                                                                        Slopes<C> by) {
    constexpr int width = X::width;
    const ChannelPosition<width> at(s);
    if (at.channel >= s.channels) return;
    C mean[width], scale[width], slope[width], offset[width];
    load_row(by.mean, at.channel, mean);
    load_row(by.scale, at.channel, scale);
    load_row(by.slope, at.channel, slope);
    load_row(by.offset, at.channel, offset);
    for (std::int64_t row = std::int64_t(blockIdx.y) * at.ways + at.way; row < s.rows;
         row += std::int64_t(gridDim.y) * at.ways) {
        const std::int64_t i = row * s.channels + at.channel;
        C g[width], x[width];
        images.g.load(i, g);
        images.x.load(i, x);
        apply_bits(images.bits, i, g);
        for (int k = 0; k < width; ++k) g[k] = g[k] * scale[k] - (x[k] - mean[k]) * slope[k] - offset[k];
        images.dx.store(i, g);
    }
}

template <class X>
void batch_norm_grad(In in, const kernels::BatchNormGrad& at, Out out, const GradImages<X>& images) {
    using C = typename X::C;
    const ChannelGrid s = channel_grid(in[1].shape()[0], in[1].shape()[1], X::width);
    const std::int64_t item = sizeof(C);
    const Scratch coefficients(in[1].device(), 4 * s.channels * item),
        parts(in[1].device(), s.parts * part_vectors * s.channels * item);
    C* const first = coefficients.as<C>();
    const GradConclusion<C> end{{first, first + s.channels, first + 2 * s.channels, first + 3 * s.channels},
                                any_of<C>(in[2]),
                                any_of<C>(in[4]),
                                any_of<C>(in[5]),
                                any_of<C>(out[2]),
                                any_of<C>(out[3]),
                                at.batch_statistics};
    const Tickets tickets(int(s.tiles));
    launch(grad_sums_kernel<X>, parts_grid(s), channels_block, 0, images, s,
           PartSums<C>{parts.as<C>(), part_vectors, s.channels}, end, tickets.get());
    if (s.rows > 0) launch(normalise_grad_kernel<X>, rows_grid(s), channels_block, 0, images, s, end.by);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void batch_norm_grad(In in, const kernels::BatchNormGrad& at, Out out) {
    use_device_of(out[0]);
    const std::int64_t channels = in[1].shape()[1];
    if (channels == 0) return;
    const auto* const bits =
        in[3].defined() && in[3].numel() != 0 ? static_cast<const std::uint8_t*>(raw(in[3])) : nullptr;
    with_access(channels, {in[0], in[1], out[0], out[1]}, [&](const auto& image_of) {
        using X = decltype(image_of(in[0]));
        cuda::batch_norm_grad<X>(
            in, at, out,
            GradImages<X>{image_of(in[0]), image_of(in[1]), image_of(out[1]), image_of(out[0]), bits});
    });
}

constinit const KernelList batch_norm_grad_list = kernel_list<batch_norm_grad>;

}  // namespace mezzo::cuda_kernels
