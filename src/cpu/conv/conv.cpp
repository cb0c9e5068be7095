// Convolutions and their gradients as products of windows with the weight.
#include "kernels/conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/conv/tap_sums.h"
#include "cpu/conv/window_product.h"
#include "cpu/elementwise/convert.h"
#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace mezzo {
namespace {

using namespace cpu;

// x, or a row-major copy of it.
Tensor row_major(const Tensor& x) {
    if (x->contiguous) return x;
    const Tensor copy = empty(x->shape, {.dtype = x->dtype});
    cpu_kernels::cast({&x, 1}, {}, {&copy, 1});
    return copy;
}

char* data(const Tensor& x) { return x->numel ? x->bytes() : nullptr; }

Size2d kernel_size(const Shape& weight) { return {weight[1], weight[2]}; }

constexpr std::int64_t few_channels = 16, few_outputs = 8;
constexpr std::int64_t cached_floats = 1 << 19;

// Windows of one group of few channels, whose taps in a row of the kernel are neighbours, get one tap per
// row, which has the channels of all of them: in a float32 copy of the images with zeros at the sides, which
// is returned. Otherwise returns an undefined tensor. 16 channels fill a vector: their images are copied only
// if they stay in the L2 cache.
Tensor join_taps(Windows& x, Size2d kernel, const kernels::ConvGeometry& geometry) {
    if (geometry.groups != 1 || geometry.dilation.width != 1 || kernel.width == 1 ||
        x.step.width > kernel.width || x.channels > (x.step.width == 1 ? few_channels : few_channels / 2) ||
        x.count() * x.steps() == 0)
        return {};
    if (x.channels == few_channels && x.images * x.height * x.width * x.pixel > cached_floats) return {};
    const std::int64_t before = geometry.padding.width, width = (x.columns - 1) * x.step.width + kernel.width,
                       pixel = x.pixel, inside = std::clamp<std::int64_t>(width - before, 0, x.width);
    if (width > 2 * x.width + 64) return {};  // mostly zeros
    Tensor copy = empty({x.images, x.height, width, pixel}, {.dtype = float32});
    const std::int64_t line = x.width * pixel * std::int64_t(size_of(x.type));
    auto* const to = reinterpret_cast<float*>(copy->bytes());
    parallel_for(x.images * x.height, grain / (width * pixel) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            float* const at = std::fill_n(to + row * width * pixel, std::min(before, width) * pixel, 0.0f);
            convert(x.data + row * line, x.type, at, float32, inside * pixel);
            std::fill(at + inside * pixel, to + (row + 1) * width * pixel, 0.0f);
        }
    });
    x.data = copy->bytes(), x.type = float32, x.width = width, x.channels *= kernel.width;
    std::vector<Tap> taps;
    for (std::int64_t r = 0; r < kernel.height; ++r)
        taps.push_back({x.taps[std::size_t(r * kernel.width)].h, 0, r});
    x.taps = std::move(taps);
    return copy;
}

// Sets `images` [N, H, W, C] as the source in which windows lie.
void set_source(Windows& windows, const Tensor& images, std::int64_t groups) {
    const Shape& shape = images->shape;
    windows.data = data(images);
    windows.type = images->dtype;
    windows.images = shape[0], windows.height = shape[1], windows.width = shape[2];
    windows.pixel = shape[3];
    windows.channels = shape[3] / groups;
}

Pixels pixels_of(const Tensor& images) {
    const Shape& shape = images->shape;
    return {data(images), images->dtype, shape[1], shape[2], shape[3]};
}

ConvWeight weight_of(const Tensor& w) {
    const Shape& shape = w->shape;
    return {data(w), w->dtype, shape[0], shape[1] * shape[2], shape[3]};
}

// Computes y = activation(conv2d + residual) of in[0] by in[1] with the bias in[2], if there is one.
void convolve(In in, const kernels::ConvGeometry& at, const Tensor& residual, Activation activation,
              const Tensor& y) {
    if (y->numel == 0) return;
    const Tensor x = row_major(in[0]), weight = row_major(in[1]);
    WindowProduct p;
    p.windows = windows_of_input(at, kernel_size(weight->shape));
    set_source(p.windows, x, at.groups);
    p.windows.rows = y->shape[1], p.windows.columns = y->shape[2];
    p.weight = weight_of(weight);
    const Tensor joined =
        x->dtype == float32 ? join_taps(p.windows, kernel_size(weight->shape), at) : Tensor();
    if (in[1]->contiguous) p.weight.tensor = &in[1];
    p.weight.inputs = p.windows.channels, p.weight.taps = std::int64_t(p.windows.taps.size());
    p.groups = at.groups;
    p.result = pixels_of(y);
    p.residual = residual.defined() ? data(residual) : nullptr;
    p.activation = activation;
    Tensor bias;
    if (in.size() > 2 && in[2].defined()) {
        bias = row_major(in[2]);
        p.bias = bias->bytes();
        p.bias_type = bias->dtype;
    }
    multiply_windows(p);
}

}  // namespace

namespace cpu_kernels {

void conv2d(In in, const kernels::Conv2d& at, Out out) {
    convolve(in, at.geometry, {}, Activation::none, out[0]);
}

void conv2d_add_relu(In in, const kernels::Conv2dAddRelu& at, Out out) {
    const Tensor residual = in[3].defined() ? row_major(in[3]) : Tensor();
    convolve(in, at.geometry, residual, Activation::relu, out[0]);
}

void conv2d_input_grad(In in, const kernels::Conv2dInputGrad& at, Out out) {
    const Tensor g = row_major(in[0]), weight = row_major(in[1]);
    const Tensor& dx = out[0];
    if (dx->numel == 0) return;
    Tensor bias;
    if (in.size() > 2 && in[2].defined()) bias = row_major(in[2]);
    if (has_few_channels(g, weight, at.geometry, dx)) return add_taps(g, weight, bias, at.geometry, dx);
    std::vector<Phase> phases =
        phases_of_gradient(at.geometry, kernel_size(weight->shape), {dx->shape[1], dx->shape[2]});
    // Pixels that no tap reads are zero or the bias: the whole memory is filled at once, because these pixels
    // are strided.
    if (std::erase_if(phases, [](const Phase& phase) { return phase.windows.taps.empty(); }) > 0) {
        if (bias.defined()) {
            const Tensor everywhere = bias.expand(dx->shape);
            cpu_kernels::cast({&everywhere, 1}, {}, {&dx, 1});
        } else {
            std::memset(dx->bytes(), 0, std::size_t(dx->numel) * size_of(dx->dtype));
        }
    }
    for (Phase& phase : phases) {
        WindowProduct p;
        p.windows = std::move(phase.windows);
        set_source(p.windows, g, at.geometry.groups);
        p.weight = weight_of(weight);
        p.transposed = true;
        p.groups = at.geometry.groups;
        p.result = pixels_of(dx);
        p.result.begin = phase.begin, p.result.step = at.geometry.stride;
        if (bias.defined()) p.bias = bias->bytes(), p.bias_type = bias->dtype;
        multiply_windows(p);
    }
}

void conv2d_weight_grad(In in, const kernels::Conv2dWeightGrad& at, Out out) {
    const Tensor g = row_major(in[0]), x = row_major(in[1]);
    const Tensor& dw = out[0];
    if (dw->numel == 0) return;
    WindowGradient p;
    p.windows = windows_of_input(at.geometry, kernel_size(dw->shape));
    set_source(p.windows, x, at.geometry.groups);
    p.windows.rows = g->shape[1], p.windows.columns = g->shape[2];
    const bool on_vectors = x->dtype == float32 || (x->dtype != float64 && dw->shape[0] <= few_outputs);
    const Tensor joined = on_vectors ? join_taps(p.windows, kernel_size(dw->shape), at.geometry) : Tensor();
    p.gradient = data(g);
    p.gradient_type = g->dtype;
    p.outputs = dw->shape[0];
    p.groups = at.geometry.groups;
    p.result = dw->bytes();
    p.result_type = dw->dtype;
    p.beta = at.beta;
    add_window_gradient(p);
}

constinit const KernelList conv_list =
    kernel_list<conv2d, conv2d_add_relu, conv2d_input_grad, conv2d_weight_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
