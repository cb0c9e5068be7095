// Pooling. The ops of the gradients are linear, and their gradients are ops of this file, too.
#include <algorithm>
#include <limits>
#include <vector>

#include "autograd/op_observer.h"
#include "kernels/pool_geometry.h"
#include "mezzo/image_ops.h"
#include "ops/image.h"

namespace mezzo {

namespace {

using kernels::PoolAxis;
using kernels::PoolWindow;

// ---- decompositions: one index_select per row and column of a window

// One kernel position of all windows along one axis: the pixel that each window reads there, and whether
// there is one.
struct Taps {
    std::vector<std::int64_t> pixels;
    std::vector<float> inside;
};

Taps taps_along(const PoolAxis& axis, std::int64_t size, std::int64_t results, std::int64_t place) {
    Taps taps;
    for (std::int64_t i = 0; i < results; ++i) {
        const kernels::PoolPlaces places = kernels::places_of(axis, size, results, i);
        const bool inside = places.begin <= place && place < places.end;
        taps.pixels.push_back(inside ? places.first + place * (axis.adaptive ? 1 : axis.dilation) : 0);
        taps.inside.push_back(inside ? 1.0F : 0.0F);
    }
    return taps;
}

// The elements of x at one kernel position of all windows, and a broadcastable mask that is true where there
// is one.
struct Read {
    Tensor values, inside;
};

Read read_along(const Tensor& x, int dim, const PoolAxis& axis, std::int64_t results, std::int64_t place) {
    const Taps taps = taps_along(axis, x.size(dim), results, place);
    Shape shape = Shape::filled(4, 1);
    shape[dim] = results;
    return {index_select(x, dim, Tensor::from(taps.pixels, {results}).to(x.device())),
            gt(Tensor::from(taps.inside, shape).to(x.device()), 0.5)};
}

// Calls f(values, inside) for each kernel position of the windows, row by row.
template <class F> void for_places(const Tensor& x, const PoolWindow& window, Size2d results, const F& f) {
    const std::int64_t height = places_along(window.height, x.size(1), results.height),
                       width = places_along(window.width, x.size(2), results.width);
    for (std::int64_t r = 0; r < height; ++r) {
        const Read rows = read_along(x, 1, window.height, results.height, r);
        for (std::int64_t s = 0; s < width; ++s) {
            const Read pixels = read_along(rows.values, 2, window.width, results.width, s);
            f(pixels.values, logical_and(rows.inside, pixels.inside));
        }
    }
}

Tensors max_pool2d_decomposition(In in, const kernels::MaxPool2d& at) {
    const Tensor& x = in[0];
    const Shape shape{x.size(0), at.size.height, at.size.width, x.size(3)};
    Tensor best =
        full(shape, -std::numeric_limits<double>::infinity(), {.dtype = x.dtype(), .device = x.device()});
    Tensor found;  // whether the window has had a pixel
    for_places(x, at.window, at.size, [&](const Tensor& v, const Tensor& inside) {
        const Tensor larger = logical_or(gt(v, best), ne(v, v));
        const Tensor better = found.defined() ? logical_or(larger, logical_not(found)) : inside;
        best = where(logical_and(inside, better), v, best);
        found = found.defined() ? logical_or(found, inside) : inside;
    });
    return {best};
}

// The number of elements by which each result divides its sum, along one axis.
std::vector<float> counts_along(const PoolAxis& axis, std::int64_t size, std::int64_t results,
                                bool with_padding) {
    std::vector<float> counts;
    for (std::int64_t i = 0; i < results; ++i) {
        const kernels::PoolPlaces places = kernels::places_of(axis, size, results, i);
        counts.push_back(float(kernels::count_of(axis, size, places, with_padding)));
    }
    return counts;
}

Tensors avg_pool2d_decomposition(In in, const kernels::AvgPool2d& at) {
    const Tensor& x = in[0];
    Tensor total = zeros({x.size(0), at.size.height, at.size.width, x.size(3)},
                         {.dtype = x.dtype(), .device = x.device()});
    for_places(x, at.window, at.size, [&](const Tensor& v, const Tensor& inside) {
        total = total + masked_fill(v, logical_not(inside), 0);
    });
    const auto counts = [&](const PoolAxis& axis, std::int64_t size, std::int64_t results,
                            const Shape& shape) {
        return Tensor::from(counts_along(axis, size, results, at.count_include_pad), shape).to(x.device());
    };
    const Tensor rows = counts(at.window.height, x.size(1), at.size.height, {1, at.size.height, 1, 1}),
                 columns = counts(at.window.width, x.size(2), at.size.width, {1, 1, at.size.width, 1});
    return {total / cast(rows * columns, x.dtype())};
}

// ---- rows

Tensors max_pool2d_vjp(const Node& c, const kernels::MaxPool2d& at, const Tensors& g);
Tensors max_pool2d_grad_vjp(const Node& c, const kernels::MaxPool2dGrad& at, const Tensors& g);
Tensors max_pool2d_gather_vjp(const Node& c, const kernels::MaxPool2dGather& at, const Tensors& g);

const Op<kernels::MaxPool2d> max_pool2d_op{
    {.saves = save_statistics, .bits_result = 1}, max_pool2d_vjp, max_pool2d_decomposition};
const Op<kernels::MaxPool2dGrad> max_pool2d_grad_op{{.saves = save_second}, max_pool2d_grad_vjp};
const Op<kernels::MaxPool2dGather> max_pool2d_gather_op{
    {.name = "max_pool2d_grad_grad", .saves = save_second}, max_pool2d_gather_vjp};

Tensors max_pool2d_vjp(const Node& c, const kernels::MaxPool2d& at, const Tensors& g) {
    return {call(max_pool2d_grad_op, {g[0], c.out(1)}, {at.window}, c.inputs[0].shape)};
}
Tensors max_pool2d_grad_vjp(const Node& c, const kernels::MaxPool2dGrad& at, const Tensors& g) {
    return {call(max_pool2d_gather_op, {g[0], c.in(1)}, {at.window}, c.inputs[0].shape), Tensor()};
}
Tensors max_pool2d_gather_vjp(const Node& c, const kernels::MaxPool2dGather& at, const Tensors& g) {
    return {call(max_pool2d_grad_op, {g[0], c.in(1)}, {at.window}, c.inputs[0].shape), Tensor()};
}

Tensors avg_pool2d_vjp(const Node& c, const kernels::AvgPool2d& at, const Tensors& g);
Tensors avg_pool2d_grad_vjp(const Node& c, const kernels::AvgPool2dGrad& at, const Tensors& g);

const Op<kernels::AvgPool2d> avg_pool2d_op{{.saves = save_none}, avg_pool2d_vjp, avg_pool2d_decomposition};
const Op<kernels::AvgPool2dGrad> avg_pool2d_grad_op{{.saves = save_none}, avg_pool2d_grad_vjp};

Tensors avg_pool2d_vjp(const Node& c, const kernels::AvgPool2d& at, const Tensors& g) {
    return {call(avg_pool2d_grad_op, {g[0]}, {at.window, at.count_include_pad}, c.inputs[0].shape)};
}
Tensors avg_pool2d_grad_vjp(const Node& c, const kernels::AvgPool2dGrad& at, const Tensors& g) {
    const Shape& shape = c.inputs[0].shape;
    return {call(avg_pool2d_op, {g[0]}, {at.window, {shape[1], shape[2]}, at.count_include_pad}, shape)};
}

// ---- checks and sizes

constexpr std::int64_t highest_option = 0x7fffffff;  // so that products of two of them fit

void check_options(const char* op, const char* what, Size2d value, std::int64_t lowest) {
    check(value.height >= lowest && value.width >= lowest && value.height <= highest_option &&
              value.width <= highest_option,
          ErrorKind::value, op, ": ", what, " is ", value.height, " x ", value.width, "; both must be ",
          lowest, " to 2^31 - 1");
}

PoolWindow checked_window(const char* op, Size2d kernel, Size2d stride, Size2d padding, Size2d dilation) {
    check_options(op, "kernel_size", kernel, 1);
    check_options(op, "stride", stride, 0);
    check_options(op, "padding", padding, 0);
    check_options(op, "dilation", dilation, 1);
    const auto axis = [&](const char* name, std::int64_t k, std::int64_t step, std::int64_t added,
                          std::int64_t apart) {
        const std::int64_t span = apart * (k - 1) + 1;
        check(added <= span / 2, ErrorKind::value, op, ": padding ", added, " of the ", name,
              " is more than half of the ", span, " that a window spans");
        return PoolAxis{.kernel = std::int32_t(k),
                        .stride = std::int32_t(step == 0 ? k : step),
                        .padding = std::int32_t(added),
                        .dilation = std::int32_t(apart)};
    };
    return {axis("height", kernel.height, stride.height, padding.height, dilation.height),
            axis("width", kernel.width, stride.width, padding.width, dilation.width)};
}

// The number of windows along an axis.
std::int64_t count_windows(const PoolAxis& axis, std::int64_t size, bool ceil_mode) {
    const std::int64_t span = std::int64_t(axis.dilation) * (axis.kernel - 1) + 1;
    const std::int64_t room = size + 2 * std::int64_t(axis.padding) - span;
    if (room < 0 && (!ceil_mode || -room >= axis.stride)) return 0;
    const std::int64_t extra = ceil_mode ? axis.stride - 1 : 0;
    const std::int64_t count = (room + extra) / axis.stride + 1;
    return ceil_mode && (count - 1) * axis.stride >= size + axis.padding ? count - 1 : count;
}

Size2d result_size(const char* op, const Tensor& x, const PoolWindow& window, bool ceil_mode) {
    check_image(op, x);
    const Size2d size(count_windows(window.height, x.size(1), ceil_mode),
                      count_windows(window.width, x.size(2), ceil_mode));
    check(size.height > 0 && size.width > 0, ErrorKind::shape, op, ": the ", window.height.kernel, " x ",
          window.width.kernel, " kernel does not fit into the ", x.size(1), " x ", x.size(2),
          " pixels of input ", x.shape(), image_layout);
    return size;
}

constexpr PoolWindow adaptive_window{{.adaptive = true}, {.adaptive = true}};

void check_adaptive(const char* op, const Tensor& x, Size2d size) {
    check_image(op, x);
    check_options(op, "output_size", size, 1);
}

Shape result_shape(const Tensor& x, Size2d size) { return {x.size(0), size.height, size.width, x.size(3)}; }

Tensor max_pooled(const char* op, const Tensor& x, const PoolWindow& window, Size2d size) {
    const Shape shape = result_shape(x, size);
    const std::int64_t height = places_along(window.height, x.size(1), size.height),
                       width = places_along(window.width, x.size(2), size.width);
    std::int64_t count = 0;
    check(!__builtin_mul_overflow(height, width, &count) && count - 1 <= 0xffffffff, ErrorKind::value, op,
          ": a window of ", height, " x ", width, " has more than 2^32 places");
    Shape places = shape;
    if (count > kernels::byte_places) places.push_back(4);
    const Shape shapes[] = {shape, places};
    return call(max_pool2d_op, Tensors{x}, {window, size}, std::span(shapes, recording(x) ? 2 : 1))[0];
}

// A pool of images applied to signals [N, L, C]: images of height 1.
template <class F> Tensor of_signal(const char* op, const Tensor& x, const F& pool) {
    check_floating(op, x);
    check(x.dim() == 3, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(),
          " dimensions, not 3; signals are [batch, length, channels], and x.transpose(1, 2) makes one of "
          "[batch, "
          "channels, length]");
    return pool(x.unsqueeze(1)).squeeze(1);
}

Tensor max_pool(const char* op, const Tensor& x, const MaxPool2dOptions& o) {
    const PoolWindow window = checked_window(op, o.kernel_size, o.stride, o.padding, o.dilation);
    return max_pooled(op, x, window, result_size(op, x, window, o.ceil_mode));
}

Tensor avg_pool(const char* op, const Tensor& x, const AvgPool2dOptions& o) {
    const PoolWindow window = checked_window(op, o.kernel_size, o.stride, o.padding, 1);
    const Size2d size = result_size(op, x, window, o.ceil_mode);
    return call(avg_pool2d_op, {x}, {window, size, o.count_include_pad}, result_shape(x, size));
}

Tensor adaptive_max_pool(const char* op, const Tensor& x, Size2d size) {
    check_adaptive(op, x, size);
    return max_pooled(op, x, adaptive_window, size);
}

Tensor adaptive_avg_pool(const char* op, const Tensor& x, Size2d size) {
    check_adaptive(op, x, size);
    return call(avg_pool2d_op, {x}, {adaptive_window, size, false}, result_shape(x, size));
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const MaxPool2dOptions& options) {
    return max_pool("max_pool2d", x, options);
}
Tensor avg_pool2d(const Tensor& x, const AvgPool2dOptions& options) {
    return avg_pool("avg_pool2d", x, options);
}
Tensor adaptive_avg_pool2d(const Tensor& x, Size2d size) {
    const CompositeOp here("adaptive_avg_pool2d");
    return adaptive_avg_pool("adaptive_avg_pool2d", x, size);
}
Tensor adaptive_max_pool2d(const Tensor& x, Size2d size) {
    const CompositeOp here("adaptive_max_pool2d");
    return adaptive_max_pool("adaptive_max_pool2d", x, size);
}

Tensor max_pool1d(const Tensor& x, const MaxPool1dOptions& o) {
    const CompositeOp here("max_pool1d");
    return of_signal("max_pool1d", x, [&](const Tensor& image) {
        return max_pool("max_pool1d", image,
                        {{1, o.kernel_size}, {1, o.stride}, {0, o.padding}, {1, o.dilation}, o.ceil_mode});
    });
}
Tensor avg_pool1d(const Tensor& x, const AvgPool1dOptions& o) {
    const CompositeOp here("avg_pool1d");
    return of_signal("avg_pool1d", x, [&](const Tensor& image) {
        return avg_pool(
            "avg_pool1d", image,
            {{1, o.kernel_size}, {1, o.stride}, {0, o.padding}, o.ceil_mode, o.count_include_pad});
    });
}
Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t size) {
    const CompositeOp here("adaptive_avg_pool1d");
    return of_signal("adaptive_avg_pool1d", x, [&](const Tensor& image) {
        return adaptive_avg_pool("adaptive_avg_pool1d", image, {1, size});
    });
}
Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t size) {
    const CompositeOp here("adaptive_max_pool1d");
    return of_signal("adaptive_max_pool1d", x, [&](const Tensor& image) {
        return adaptive_max_pool("adaptive_max_pool1d", image, {1, size});
    });
}

}  // namespace mezzo
