// batch_norm: one launch for the batch's statistics and everything that follows from them, including the
// running statistics, and one that computes the result.
#include "kernels/batch_norm.h"

#include "cuda/kernels.h"
#include "cuda/norm/channels.cuh"

namespace mezzo::cuda {
namespace {

// Coefficients that normalise the channels: y = (x - mean) scale + shift. The shift also holds the difference
// between the mean and its rounding to C, so that a mean far from 0 costs the result no digits.
template <class C> struct Coefficients { C *mean, *scale, *shift, *variance; };

// Everything that is computed from the batch's statistics: coefficients, results, running statistics.
template <class C> struct Conclusion {
    Coefficients<C> by;
    AnyArray<C> weight, bias;
    AnyArray<C> mean, rstd;  // results, or null
    C eps;
    // Running statistics; no update: null.
    AnyArray<C> running_mean, running_var;
    std::int64_t* batches;  // or null
    double momentum;

    // `rest`: the mean minus `average`.
    __device__ void finish(std::int64_t c, C average, C rest, C spread) const {
        const C inverse = C(1) / std::sqrt(spread + eps), scale = inverse * weight.load(c);
        by.mean[c] = average;
        by.scale[c] = scale;
        by.shift[c] = bias.load(c) - rest * scale;
        by.variance[c] = spread;
        if (mean.p == nullptr) return;
        mean.store(c, average);
        rstd.store(c, inverse);
    }
};

template <class C> __device__ bool finite(C x) { return x - x == C(0); }

// Whether x stays finite as `dtype`: 65520 and more become infinite as float16.
template <class C> __device__ bool finite_as(Dtype dtype, C x) {
    return finite(x) && !(dtype == Dtype::float16 && (x >= C(65520) || x <= C(-65520)));
}

// Updates the running statistics, in the last block of the launch. Leaves them as they are if one of the
// batch's statistics or one of the updated ones is not finite.
template <class C> __device__ void update_running(const Conclusion<C>& end, const ChannelGrid& s) {
    const std::int64_t count = end.batches != nullptr ? *end.batches + 1 : 0;
    const C share =
        end.momentum == end.momentum ? static_cast<C>(end.momentum) : C(1) / static_cast<C>(count);
    const C unbiased = static_cast<C>(s.rows) / static_cast<C>(s.rows - 1);
    const auto mean = [&](std::int64_t c) {
        return (C(1) - share) * end.running_mean.load(c) + share * end.by.mean[c];
    };
    const auto variance = [&](std::int64_t c) {
        return (C(1) - share) * end.running_var.load(c) + share * (end.by.variance[c] * unbiased);
    };
    int bad = 0;
    for (std::int64_t c = threadIdx.x; c < s.channels; c += blockDim.x)
        bad |= !finite(end.by.mean[c]) || !finite(end.by.variance[c]) ||
               !finite_as(end.running_mean.dtype, mean(c)) || !finite_as(end.running_var.dtype, variance(c));
    if (__syncthreads_count(bad) != 0) return;  // all have read the count
    if (threadIdx.x == 0 && end.batches != nullptr) *end.batches = count;
    for (std::int64_t c = threadIdx.x; c < s.channels; c += blockDim.x) {
        end.running_mean.store(c, mean(c));
        end.running_var.store(c, variance(c));
    }
}

enum PartVector { of_pivot, of_sum, of_squares, part_vectors };

// Joins the parts of a tile: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
// computing sample variances", 1979. Means are stored as distances from the first part's pivot.
template <class X, class C = typename X::C>
__device__ void join_parts(const PartSums<C>& parts, const ChannelGrid& s, const Conclusion<C>& end) {
    const Finisher<X::width> f(s);
    const std::type_identity<C> as;
    if (s.rows == 0) {  // no block has written a part
        if (f.way == 0 && f.channel < s.channels) end.finish(f.channel, C(0), C(0), C(0));
        return;
    }
    const C first = f.channel < s.channels ? parts.at(0, of_pivot, f.channel) : C(0);
    const auto apart = [&](std::int64_t part) {
        return parts.at(part, of_pivot, f.channel) - first +
               parts.at(part, of_sum, f.channel) / static_cast<C>(s.rows_of(part));
    };
    const C total = static_cast<C>(s.rows);
    C distance = f.sum(
        s, [&](std::int64_t part) { return apart(part) * (static_cast<C>(s.rows_of(part)) / total); }, as);
    C squares = f.sum(
        s,
        [&](std::int64_t part) {
            const C n = static_cast<C>(s.rows_of(part)), sum = parts.at(part, of_sum, f.channel),
                    off = apart(part) - distance,
                    within = parts.at(part, of_squares, f.channel) - sum * (sum / n);
            return (within < C(0) ? C(0) : within) + n * off * off;
        },
        as);
    if (f.way != 0 || f.channel >= s.channels) return;
    const C mean = first + distance;
    end.finish(f.channel, mean, distance - (mean - first), squares / total);
}

template <class X, class C = typename X::C>
__global__ __launch_bounds__(channels_block, 2) void moments_kernel(X x, ChannelGrid s, PartSums<C> parts,
                                                                    Conclusion<C> end, unsigned* tickets) {
    constexpr int width = X::width;
    const ChannelPosition<width> at(s);
    const std::int64_t begin = blockIdx.y * s.part_rows, stop = begin + s.rows_of(blockIdx.y);
    C pivot[width] = {}, sums[2 * width] = {};
    const bool inside = at.channel < s.channels && begin < stop;
    if (inside) {
        x.load(begin * s.channels + at.channel, pivot);
        for (std::int64_t row = begin + at.way; row < stop; row += rows_in_flight * at.ways) {
            C values[rows_in_flight][width];
            MEZZO_UNROLL
            for (int u = 0; u < rows_in_flight; ++u)
                if (row + u * at.ways < stop)
                    x.load((row + u * at.ways) * s.channels + at.channel, values[u]);
            MEZZO_UNROLL
            for (int u = 0; u < rows_in_flight; ++u) {
                if (row + u * at.ways >= stop) break;
                MEZZO_UNROLL
                for (int k = 0; k < width; ++k) {
                    const C d = values[u][k] - pivot[k];
                    sums[k] += d;
                    sums[width + k] += d * d;
                }
            }
        }
    }
    add_ways(sums, s.lanes);
    if (at.way == 0 && inside)
        for (int k = 0; k < width; ++k) {
            parts.at(blockIdx.y, of_pivot, at.channel + k) = pivot[k];
            parts.at(blockIdx.y, of_sum, at.channel + k) = sums[k];
            parts.at(blockIdx.y, of_squares, at.channel + k) = sums[width + k];
        }
    if (!last_of(tickets + blockIdx.x, gridDim.y)) return;
    join_parts<X>(parts, s, end);
    if (end.running_mean.p == nullptr) return;
    if (last_of(tickets + gridDim.x, gridDim.x)) update_running(end, s);
}

// The coefficients that follow from running statistics.
template <class C> __global__ void running_kernel(AnyArray<C> running_mean, AnyArray<C> running_var,
                                                  std::int64_t channels, Conclusion<C> end) {
    for (std::int64_t c = first_item(); c < channels; c += item_step())
        end.finish(c, running_mean.load(c), C(0), running_var.load(c));
}

template <class X> struct Images {
    X x, residual, y;    // no residual: null
    std::uint8_t* bits;  // of y > 0, or null
    bool relu;
};

// A thread keeps the coefficients of its eight channels in registers.
template <class T>
__global__ __launch_bounds__(channels_block) void normalise_kernel(Images<Packed<T>> images, ChannelGrid s,
                                                                   Coefficients<float> by) {
    constexpr int width = Packed<T>::width;
    const ChannelPosition<width> at(s);
    if (at.channel >= s.channels) return;
    float mean[width], scale[width], shift[width];
    load_row(by.mean, at.channel, mean);
    load_row(by.scale, at.channel, scale);
    load_row(by.shift, at.channel, shift);
    for (std::int64_t row = std::int64_t(blockIdx.y) * at.ways + at.way; row < s.rows;
         row += std::int64_t(gridDim.y) * at.ways) {
        const std::int64_t i = row * s.channels + at.channel;
        float values[width], residual[width] = {};
        images.x.load(i, values);
        if (images.residual.p != nullptr) images.residual.load(i, residual);
        unsigned word = 0;
        for (int k = 0; k < width; ++k) {
            const float y = (values[k] - mean[k]) * scale[k] + shift[k] + residual[k];
            word |= y > 0 ? 1u << k : 0u;
            values[k] = images.relu && y <= 0 ? 0.0f : y;
        }
        images.y.store(i, values);
        if (images.bits != nullptr) images.bits[i / 8] = static_cast<std::uint8_t>(word);
    }
}

// Any dtypes and any number of channels: a thread takes the eight elements of a byte of bits.
template <class C>
__global__ void normalise_any_kernel(Images<Single<C>> images, ChannelGrid s, Coefficients<C> by) {
    const std::int64_t n = s.rows * s.channels;
    for (std::int64_t byte = first_item(); byte * 8 < n; byte += item_step()) {
        unsigned word = 0;
        for (std::int64_t i = byte * 8; i < byte * 8 + 8 && i < n; ++i) {
            const std::int64_t c = i % s.channels;
            C value[1], residual[1] = {0};
            images.x.load(i, value);
            if (images.residual.p != nullptr) images.residual.load(i, residual);
            const C y = (value[0] - by.mean[c]) * by.scale[c] + by.shift[c] + residual[0];
            word |= y > C(0) ? 1u << (i % 8) : 0u;
            value[0] = images.relu && y <= C(0) ? C(0) : y;
            images.y.store(i, value);
        }
        if (images.bits != nullptr) images.bits[byte] = static_cast<std::uint8_t>(word);
    }
}

template <class T>
void normalise(const Images<Packed<T>>& images, const ChannelGrid& s, const Coefficients<float>& by) {
    launch(normalise_kernel<T>, rows_grid(s), channels_block, 0, images, s, by);
}
template <class C>
void normalise(const Images<Single<C>>& images, const ChannelGrid& s, const Coefficients<C>& by) {
    launch(normalise_any_kernel<C>, grid_for((s.rows * s.channels + 7) / 8), 256, 0, images, s, by);
}

template <class C> Conclusion<C> conclusion(In in, const kernels::BatchNorm& at, Out out, C* coefficients,
                                            std::int64_t channels) {
    Conclusion<C> end{};
    end.by = {coefficients, coefficients + channels, coefficients + 2 * channels,
              coefficients + 3 * channels};
    end.weight = any_of<C>(in[1]);
    end.bias = any_of<C>(in[2]);
    end.eps = static_cast<C>(at.eps);
    end.mean = end.rstd = end.running_mean = end.running_var = {nullptr, float32};
    if (out.size() > 2) {
        end.mean = any_of<C>(out[2]);
        end.rstd = any_of<C>(out[3]);
    }
    if (!at.update) return end;
    end.running_mean = any_of<C>(in[4]);
    end.running_var = any_of<C>(in[5]);
    end.batches = in[6].defined() ? static_cast<std::int64_t*>(raw(in[6])) : nullptr;
    end.momentum = at.momentum;
    return end;
}

template <class X> void batch_norm(In in, const kernels::BatchNorm& at, Out out, const Images<X>& images) {
    using C = typename X::C;
    const ChannelGrid s = channel_grid(in[0].shape()[0], in[0].shape()[1], X::width);
    const Scratch coefficients(in[0].device(), 4 * s.channels * std::int64_t(sizeof(C)));
    const Conclusion<C> end = conclusion(in, at, out, coefficients.as<C>(), s.channels);
    if (at.batch_statistics) {
        const Scratch parts(in[0].device(), s.parts * part_vectors * s.channels * std::int64_t(sizeof(C)));
        const Tickets tickets(int(s.tiles) + 1);
        launch(moments_kernel<X>, parts_grid(s), channels_block, 0, images.x, s,
               PartSums<C>{parts.as<C>(), part_vectors, s.channels}, end, tickets.get());
    } else {
        launch(running_kernel<C>, grid_for(s.channels), 256, 0, any_of<C>(in[4]), any_of<C>(in[5]),
               s.channels, end);
    }
    if (s.rows > 0) normalise(images, s, end.by);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void batch_norm(In in, const kernels::BatchNorm& at, Out out) {
    use_device_of(out[0]);
    const std::int64_t channels = in[0].shape()[1];
    if (channels == 0) return;
    auto* const bits =
        at.relu && out.size() > 1 && out[1].numel() != 0 ? static_cast<std::uint8_t*>(raw(out[1])) : nullptr;
    with_access(channels, {in[0], in[3], out[0]}, [&](const auto& image_of) {
        using X = decltype(image_of(in[0]));
        cuda::batch_norm<X>(in, at, out,
                            Images<X>{image_of(in[0]), image_of(in[3]), image_of(out[0]), bits, at.relu});
    });
}

constinit const KernelList batch_norm_list = kernel_list<batch_norm>;

}  // namespace mezzo::cuda_kernels
