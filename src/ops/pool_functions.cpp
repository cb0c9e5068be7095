// The pooling functions: checks, sizes, indices. Volumes are pooled as images, and then along their depth.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "autograd/op_observer.h"
#include "kernels/pool_geometry.h"
#include "mezzo/image_ops.h"
#include "ops/image.h"
#include "ops/pool.h"

namespace mezzo {

namespace {

using kernels::PoolAxis;
using kernels::PoolWindow;

struct AvgPool3d {
    static constexpr const char* name = "avg_pool3d";
    PoolWindow image = {};
    PoolAxis depth = {};
    Size3d size = 1;  // of the result
    bool count_include_pad = true;
    std::int64_t divisor = 0;  // if not 0: of every sum
};

// Images [N * D, H, W, C], pooled by `pool`, and then lines of their pixels along the depth.
template <class F> Tensor pooled_volume(const Tensor& x, const PoolWindow& image, const PoolAxis& depth,
                                        Size3d size, const F& pool) {
    const std::int64_t n = x.size(0), d = x.size(1), c = x.size(4), pixels = size.height * size.width;
    const Tensor slices = pool(x.reshape({n * d, x.size(2), x.size(3), c}), image, {size.height, size.width});
    return pool(slices.reshape({n, d, pixels, c}), {depth, {}}, {size.depth, pixels})
        .reshape({n, size.depth, size.height, size.width, c});
}

const Op<AvgPool3d> avg_pool3d_op{
    {}, nullptr, [](In in, const AvgPool3d& at) -> Tensors {
        const Tensor& x = in[0];
        const auto mean = [&](const Tensor& t, const PoolWindow& window, Size2d size) {
            return avg_pooled(t, window, size, at.count_include_pad);
        };
        const Tensor y = pooled_volume(x, at.image, at.depth, at.size, mean);
        if (at.divisor == 0) return {y};
        const auto counts = [&](const PoolAxis& axis, int dim, std::int64_t results) {
            Shape shape = Shape::filled(5, 1);
            shape[dim] = results;
            const auto values = counts_along(axis, x.size(dim), results, at.count_include_pad);
            return Tensor::from(values, shape).to(x.device()).to(x.dtype());
        };
        const Tensor sums =
            y * (counts(at.depth, 1, at.size.depth) *
                 (counts(at.image.height, 2, at.size.height) * counts(at.image.width, 3, at.size.width)));
        return {sums / double(at.divisor)};
    }};

// ---- checks and sizes

constexpr std::int64_t highest_option = 0x7fffffff;  // so that products of two of them fit

// Numbers of an option along the axes, from the last one on: width, height, depth.
struct Numbers {
    std::int64_t width, height, depth = 1;
    bool volume = false;
    Numbers(Size2d size) : width(size.width), height(size.height) {}
    Numbers(Size3d size) : width(size.width), height(size.height), depth(size.depth), volume(true) {}
};

void check_options(const char* op, const char* what, const Numbers& value, std::int64_t lowest) {
    bool inside = true;
    for (const std::int64_t n : {value.width, value.height, value.volume ? value.depth : value.height})
        inside = inside && n >= lowest && n <= highest_option;
    if (inside) return;
    const std::string depth = value.volume ? fmt::format("{} x ", value.depth) : "";
    fail(ErrorKind::value, op, ": ", what, " is ", depth, value.height, " x ", value.width, "; each must be ",
         lowest, " to 2^31 - 1");
}

PoolAxis checked_axis(const char* op, const char* name, std::int64_t kernel, std::int64_t stride,
                      std::int64_t padding, std::int64_t dilation) {
    const std::int64_t span = dilation * (kernel - 1) + 1;
    check(padding <= span / 2, ErrorKind::value, op, ": padding ", padding, " of the ", name,
          " is more than half of the ", span, " that a window spans");
    return PoolAxis{.kernel = std::int32_t(kernel),
                    .stride = std::int32_t(stride == 0 ? kernel : stride),
                    .padding = std::int32_t(padding),
                    .dilation = std::int32_t(dilation)};
}

struct Window3d {
    PoolWindow image = {};
    PoolAxis depth = {};
};

Window3d checked_window(const char* op, const Numbers& kernel, const Numbers& stride, const Numbers& padding,
                        const Numbers& dilation) {
    check_options(op, "kernel_size", kernel, 1);
    check_options(op, "stride", stride, 0);
    check_options(op, "padding", padding, 0);
    check_options(op, "dilation", dilation, 1);
    Window3d window{
        {checked_axis(op, "height", kernel.height, stride.height, padding.height, dilation.height),
         checked_axis(op, "width", kernel.width, stride.width, padding.width, dilation.width)}};
    if (kernel.volume)
        window.depth = checked_axis(op, "depth", kernel.depth, stride.depth, padding.depth, dilation.depth);
    return window;
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

Size3d result_size(const char* op, const Tensor& x, const Window3d& window, bool ceil_mode) {
    check_volume(op, x);
    const PoolWindow& image = window.image;
    const Size3d size(count_windows(window.depth, x.size(1), ceil_mode),
                      count_windows(image.height, x.size(2), ceil_mode),
                      count_windows(image.width, x.size(3), ceil_mode));
    check(size.depth > 0 && size.height > 0 && size.width > 0, ErrorKind::shape, op, ": the ",
          window.depth.kernel, " x ", image.height.kernel, " x ", image.width.kernel,
          " kernel does not fit into the ", x.size(1), " x ", x.size(2), " x ", x.size(3),
          " voxels of input ", x.shape(), volume_layout);
    return size;
}

constexpr PoolWindow adaptive_window{{.adaptive = true}, {.adaptive = true}};

void check_adaptive(const char* op, const Tensor& x, Size2d size) {
    check_image(op, x);
    check_options(op, "output_size", size, 1);
}

// The pixel that position 0 of each window reads, which may be padding.
Tensor first_pixels(const PoolAxis& axis, std::int64_t size, std::int64_t results, const Shape& shape,
                    Device device) {
    std::vector<double> first;
    for (std::int64_t i = 0; i < results; ++i)
        first.push_back(double(kernels::places_of(axis, size, results, i).first));
    return Tensor::from(first, shape).to(device);
}

// Indices in an image of height x width pixels, from kernel positions. In float64, which holds them all.
Tensor flat_indices(const Tensor& positions, const Tensor& x, const PoolWindow& window, Size2d size) {
    Tensor p = cast(positions, float64);
    if (p.dim() == 5) {
        Tensor whole = p.select(4, 0);
        for (int k = 1; k < 4; ++k) whole = whole + p.select(4, k) * std::ldexp(1.0, 8 * k);
        p = whole;
    }
    const std::int64_t height = x.size(1), width = x.size(2);
    const auto apart = [](const PoolAxis& axis) { return axis.adaptive ? 1.0 : double(axis.dilation); };
    const double columns = double(places_along(window.width, width, size.width));
    const Tensor column = remainder(p, columns), row = (p - column) / columns;
    const Tensor y = row * apart(window.height) +
                     first_pixels(window.height, height, size.height, {size.height, 1, 1}, p.device());
    const Tensor c = column * apart(window.width) +
                     first_pixels(window.width, width, size.width, {size.width, 1}, p.device());
    return cast(clamp(y * double(width) + c, 0, double(height * width - 1)), int64);
}

Pooled max_pooled_with_indices(const char* op, const Tensor& x, const PoolWindow& window, Size2d size) {
    const Tensors y = max_pooled(op, x, window, size, true);
    return {y[0], flat_indices(y[1], x, window, size)};
}

Tensor max_pooled_volume(const char* op, const Tensor& x, const Window3d& window, Size3d size) {
    return pooled_volume(x, window.image, window.depth, size,
                         [&](const Tensor& t, const PoolWindow& w, Size2d results) {
                             return max_pooled(op, t, w, results, false)[0];
                         });
}

// The pixel of the best slice, and the number of that slice.
Pooled max_pooled_volume_with_indices(const char* op, const Tensor& x, const Window3d& window, Size3d size) {
    Tensor pixel, flat;  // of the largest of each slice, and of the largest of all in [depth, pixels]
    const Tensor values = pooled_volume(x, window.image, window.depth, size,
                                        [&](const Tensor& t, const PoolWindow& w, Size2d results) {
                                            const Pooled y = max_pooled_with_indices(op, t, w, results);
                                            pixel = flat;
                                            flat = y.indices;
                                            return y.values;
                                        });
    const std::int64_t pixels = size.height * size.width;
    const Tensor column = arange(pixels, {.dtype = int64, .device = x.device()}).unsqueeze(1);
    const Tensor slice = cast((cast(flat - column, float64)) / double(pixels), int64);
    const Tensor within = gather(pixel.reshape({x.size(0), x.size(1), pixels, x.size(4)}), 1, slice);
    return {values, (slice * (x.size(2) * x.size(3)) + within).reshape(values.shape())};
}

// Images of height 1 from signals [N, L, C].
Tensor image_of_signal(const char* op, const Tensor& x) {
    check_floating(op, x);
    check(x.dim() == 3, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(),
          " dimensions, not 3; signals are [batch, length, channels], and x.transpose(1, 2) makes one of "
          "[batch, channels, length]");
    return x.unsqueeze(1);
}
Pooled squeezed(const Pooled& y) { return {y.values.squeeze(1), y.indices.squeeze(1)}; }

MaxPool2dOptions of_height_1(const MaxPool1dOptions& o) {
    return {{1, o.kernel_size}, {1, o.stride}, {0, o.padding}, {1, o.dilation}, o.ceil_mode};
}

Pooled max_pool(const char* op, const Tensor& x, const MaxPool2dOptions& o, bool indices) {
    const PoolWindow window = checked_window(op, o.kernel_size, o.stride, o.padding, o.dilation).image;
    const Size2d size = result_size(op, x, window, o.ceil_mode);
    if (indices) return max_pooled_with_indices(op, x, window, size);
    return {max_pooled(op, x, window, size, false)[0], {}};
}

Pooled max_pool(const char* op, const Tensor& x, const MaxPool3dOptions& o, bool indices) {
    const Window3d window = checked_window(op, o.kernel_size, o.stride, o.padding, o.dilation);
    const Size3d size = result_size(op, x, window, o.ceil_mode);
    if (indices) return max_pooled_volume_with_indices(op, x, window, size);
    return {max_pooled_volume(op, x, window, size), {}};
}

Shape volume_shape(const Tensor& x, Size3d size) {
    return {x.size(0), size.depth, size.height, size.width, x.size(4)};
}

Tensor avg_pool(const char* op, const Tensor& x, const AvgPool2dOptions& o) {
    const PoolWindow window = checked_window(op, o.kernel_size, o.stride, o.padding, Size2d(1)).image;
    const Size2d size = result_size(op, x, window, o.ceil_mode);
    if (o.divisor_override == 0) return avg_pooled(x, window, size, o.count_include_pad);
    const Tensor volume = x.unsqueeze(1);
    const Size3d results{1, size.height, size.width};
    return call(avg_pool3d_op, {volume}, {window, {}, results, true, o.divisor_override},
                volume_shape(volume, results))
        .squeeze(1);
}

Pooled adaptive_max_pool(const char* op, const Tensor& x, Size2d size, bool indices) {
    check_adaptive(op, x, size);
    if (indices) return max_pooled_with_indices(op, x, adaptive_window, size);
    return {max_pooled(op, x, adaptive_window, size, false)[0], {}};
}

Tensor adaptive_avg_pool(const char* op, const Tensor& x, Size2d size) {
    check_adaptive(op, x, size);
    return avg_pooled(x, adaptive_window, size, false);
}

constexpr Window3d adaptive_window3d{adaptive_window, {.adaptive = true}};

void check_adaptive(const char* op, const Tensor& x, Size3d size) {
    check_volume(op, x);
    check_options(op, "output_size", size, 1);
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const MaxPool2dOptions& options) {
    return max_pool("max_pool2d", x, options, false).values;
}
Pooled max_pool2d_with_indices(const Tensor& x, const MaxPool2dOptions& options) {
    const CompositeOp here("max_pool2d_with_indices");
    return max_pool("max_pool2d_with_indices", x, options, true);
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
    return adaptive_max_pool("adaptive_max_pool2d", x, size, false).values;
}
Pooled adaptive_max_pool2d_with_indices(const Tensor& x, Size2d size) {
    const CompositeOp here("adaptive_max_pool2d_with_indices");
    return adaptive_max_pool("adaptive_max_pool2d_with_indices", x, size, true);
}

Tensor max_pool1d(const Tensor& x, const MaxPool1dOptions& o) {
    const CompositeOp here("max_pool1d");
    return max_pool("max_pool1d", image_of_signal("max_pool1d", x), of_height_1(o), false).values.squeeze(1);
}
Pooled max_pool1d_with_indices(const Tensor& x, const MaxPool1dOptions& o) {
    const char* op = "max_pool1d_with_indices";
    const CompositeOp here(op);
    return squeezed(max_pool(op, image_of_signal(op, x), of_height_1(o), true));
}
Tensor avg_pool1d(const Tensor& x, const AvgPool1dOptions& o) {
    const CompositeOp here("avg_pool1d");
    return avg_pool("avg_pool1d", image_of_signal("avg_pool1d", x),
                    {{1, o.kernel_size}, {1, o.stride}, {0, o.padding}, o.ceil_mode, o.count_include_pad})
        .squeeze(1);
}
Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t size) {
    const char* op = "adaptive_avg_pool1d";
    const CompositeOp here(op);
    return adaptive_avg_pool(op, image_of_signal(op, x), {1, size}).squeeze(1);
}
Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t size) {
    const char* op = "adaptive_max_pool1d";
    const CompositeOp here(op);
    return adaptive_max_pool(op, image_of_signal(op, x), {1, size}, false).values.squeeze(1);
}
Pooled adaptive_max_pool1d_with_indices(const Tensor& x, std::int64_t size) {
    const char* op = "adaptive_max_pool1d_with_indices";
    const CompositeOp here(op);
    return squeezed(adaptive_max_pool(op, image_of_signal(op, x), {1, size}, true));
}

Tensor max_pool3d(const Tensor& x, const MaxPool3dOptions& options) {
    const CompositeOp here("max_pool3d");
    return max_pool("max_pool3d", x, options, false).values;
}
Pooled max_pool3d_with_indices(const Tensor& x, const MaxPool3dOptions& options) {
    const CompositeOp here("max_pool3d_with_indices");
    return max_pool("max_pool3d_with_indices", x, options, true);
}
Tensor avg_pool3d(const Tensor& x, const AvgPool3dOptions& o) {
    const Window3d window = checked_window("avg_pool3d", o.kernel_size, o.stride, o.padding, Size3d(1));
    const Size3d size = result_size("avg_pool3d", x, window, o.ceil_mode);
    return call(avg_pool3d_op, {x},
                {window.image, window.depth, size, o.count_include_pad || o.divisor_override != 0,
                 o.divisor_override},
                volume_shape(x, size));
}
Tensor adaptive_avg_pool3d(const Tensor& x, Size3d size) {
    const CompositeOp here("adaptive_avg_pool3d");
    check_adaptive("adaptive_avg_pool3d", x, size);
    return call(avg_pool3d_op, {x}, {adaptive_window, {.adaptive = true}, size, false},
                volume_shape(x, size));
}
Tensor adaptive_max_pool3d(const Tensor& x, Size3d size) {
    const CompositeOp here("adaptive_max_pool3d");
    check_adaptive("adaptive_max_pool3d", x, size);
    return max_pooled_volume("adaptive_max_pool3d", x, adaptive_window3d, size);
}
Pooled adaptive_max_pool3d_with_indices(const Tensor& x, Size3d size) {
    const char* op = "adaptive_max_pool3d_with_indices";
    const CompositeOp here(op);
    check_adaptive(op, x, size);
    return max_pooled_volume_with_indices(op, x, adaptive_window3d, size);
}

}  // namespace mezzo
