// The pooling functions: checks, sizes, indices. Signals are pooled as images of height 1, volumes as images
// and then along their depth.
#include "autograd/op_observer.h"
#include "kernels/pool_geometry.h"
#include "mezzo/image_ops.h"
#include "ops/pool/image.h"
#include "ops/pool/pool.h"

namespace mezzo {

namespace {

using detail::AxisNumbers;
using kernels::PoolAxis;
using kernels::PoolWindow;

// Windows along depth, height and width, and the sizes of input and result. Axes that signals and images do
// not have keep size 1.
struct Pooling {
    const char* op;
    int first;  // axis that the input has
    PoolAxis axis[3] = {};
    std::int64_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1};
    // Of means: a divisor, if not 0, of every sum.
    bool mean = false, count_include_pad = false;
    std::int64_t divisor = 0;
};

// Shape of the result for x.
Shape result_of(const Tensor& x, const Pooling& p) {
    Shape shape = x.shape();
    for (int a = p.first; a < 3; ++a) shape[a - p.first + 1] = p.out[a];
    return shape;
}

// Pools images [N, H, W, C]. A null `indices` wants none.
Tensor pooled_images(const Tensor& x, const Pooling& p, const PoolWindow& window, Size2d size,
                     Tensor* indices);

// Pools images [N * D, H, W, C], and then lines of their pixels along the depth. indices: of the images,
// and of the lines in [depth, pixels].
Tensor pooled(const Tensor& x, const Pooling& p, Tensor* indices = nullptr) {
    const std::int64_t n = x.size(0), c = x.size(-1), d = p.in[0], pixels = p.out[1] * p.out[2];
    Tensor y = p.first == 1 ? x : x.reshape({n * d, p.in[1], p.in[2], c});
    y = pooled_images(y, p, {p.axis[1], p.axis[2]}, {p.out[1], p.out[2]}, indices);
    if (p.first == 0)
        y = pooled_images(y.reshape({n, d, pixels, c}), p, {p.axis[0], {}}, {p.out[0], pixels},
                          indices == nullptr ? nullptr : indices + 1);
    return p.first == 1 ? y : y.reshape(result_of(x, p));
}

struct AvgPool3d {
    static constexpr const char* name = "avg_pool3d";
    Pooling pooling = {};
};

Tensors avg_pool3d_decomposition(In in, const AvgPool3d& at) {
    const Tensor& x = in[0];
    const Pooling& p = at.pooling;
    const Tensor y = pooled(x, p);
    if (p.divisor == 0) return {y};
    Tensor counts = scalar(1 / double(p.divisor), {.dtype = x.dtype(), .device = x.device()});
    for (int a = p.first; a < 3; ++a) {
        Shape shape = Shape::filled(x.dim(), 1);
        shape[a - p.first + 1] = p.out[a];
        // The elements of a window that ceil_mode added end with the padding.
        const PoolAxis& axis = p.axis[a];
        const Tensor begin = arange(p.out[a], {.dtype = x.dtype(), .device = x.device()}) * axis.stride;
        const double end = double(p.in[a] + 2 * std::int64_t(axis.padding));
        counts = counts * clamp(end - begin, 0, axis.kernel).reshape(shape);
    }
    return {y * counts};
}

const Op<AvgPool3d> avg_pool3d_op{{}, nullptr, avg_pool3d_decomposition};

// ---- checks and sizes

constexpr std::int64_t highest_option = 0x7fffffff;  // so that products of two of them fit

void check_option(const char* op, const char* what, const AxisNumbers& numbers, std::int64_t lowest) {
    for (int i = 0; i < numbers.count; ++i)
        check(numbers.values[i] >= lowest && numbers.values[i] <= highest_option, ErrorKind::value, op, ": ",
              what, " is ", Shape(numbers.values, numbers.count), "; each must be ", lowest, " to 2^31 - 1");
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

Pooling input_of(const char* op, const Tensor& x, int axes) {
    check_pixels(op, x, axes);
    Pooling p{.op = op, .first = 3 - axes};
    for (int a = p.first; a < 3; ++a) p.in[a] = x.size(a - p.first + 1);
    return p;
}

Pooling pooling_of(const char* op, const Tensor& x, const AxisNumbers& kernel, const AxisNumbers& stride,
                   const AxisNumbers& padding, const AxisNumbers& dilation, bool ceil_mode) {
    check_option(op, "kernel_size", kernel, 1);
    check_option(op, "stride", stride, 0);
    check_option(op, "padding", padding, 0);
    check_option(op, "dilation", dilation, 1);
    constexpr const char* names[] = {"depth", "height", "width"};
    for (int i = 0; i < kernel.count; ++i) {
        const std::int64_t span = dilation.values[i] * (kernel.values[i] - 1) + 1;
        check(padding.values[i] <= span / 2, ErrorKind::value, op, ": padding ", padding.values[i],
              " of the ", kernel.count == 1 ? "length" : names[3 - kernel.count + i],
              " is more than half of the ", span, " that a window spans");
    }
    Pooling p = input_of(op, x, kernel.count);
    bool fits = true;
    for (int i = 0, a = p.first; a < 3; ++i, ++a) {
        p.axis[a] = {.kernel = std::int32_t(kernel.values[i]),
                     .stride = std::int32_t(stride.values[i] == 0 ? kernel.values[i] : stride.values[i]),
                     .padding = std::int32_t(padding.values[i]),
                     .dilation = std::int32_t(dilation.values[i])};
        p.out[a] = count_windows(p.axis[a], p.in[a], ceil_mode);
        fits = fits && p.out[a] > 0;
    }
    check(fits, ErrorKind::shape, op, ": the kernel ", Shape(kernel.values, kernel.count),
          " does not fit into the ", Shape(p.in + p.first, kernel.count), " pixels of input ", x.shape(),
          layout_hint(kernel.count), permute_hint(kernel.count));
    return p;
}

Pooling adaptive_of(const char* op, const Tensor& x, const AxisNumbers& size) {
    Pooling p = input_of(op, x, size.count);
    check_option(op, "output_size", size, 1);
    for (int i = 0; i < size.count; ++i) {
        p.axis[p.first + i].adaptive = true;
        p.out[p.first + i] = size.values[i];
    }
    if (p.first == 2) p.axis[1].adaptive = true;
    return p;
}

// ---- results

Tensor averaged(const Tensor& x, Pooling p, bool count_include_pad, std::int64_t divisor = 0) {
    p.mean = true;
    p.count_include_pad = count_include_pad || divisor != 0;
    p.divisor = divisor;
    if (p.first > 0 && divisor == 0) return pooled(x, p);
    return call(avg_pool3d_op, {x}, {p}, result_of(x, p));
}

// The pixel that position 0 of each window reads along an axis, which may be padding.
Tensor first_pixels(const PoolAxis& axis, std::int64_t size, std::int64_t results, Device device) {
    const Tensor i = arange(results, {.dtype = float64, .device = device});
    if (axis.adaptive) return floor(i * double(size) / double(results));
    return i * axis.stride - axis.padding;
}

// Indices in an image of height x width pixels, from kernel positions. In float64, which holds them all.
Tensor flat_indices(const Tensor& positions, const Tensor& x, const PoolWindow& window, Size2d size) {
    Tensor p = cast(positions, float64);
    if (p.dim() == 5)  // four bytes each
        p = p.select(4, 0) + 256.0 * (p.select(4, 1) + 256.0 * (p.select(4, 2) + 256.0 * p.select(4, 3)));
    const std::int64_t height = x.size(1), width = x.size(2);
    const auto apart = [](const PoolAxis& axis) { return axis.adaptive ? 1.0 : double(axis.dilation); };
    const double columns = double(places_along(window.width, width, size.width));
    const Tensor column = remainder(p, columns), row = (p - column) / columns;
    const Tensor y =
        row * apart(window.height) +
        first_pixels(window.height, height, size.height, p.device()).reshape({size.height, 1, 1});
    const Tensor c = column * apart(window.width) +
                     first_pixels(window.width, width, size.width, p.device()).reshape({size.width, 1});
    const Tensor index = y * double(width) + c;
    return cast(clamp(index, 0, double(height * width - 1)), int64);
}

Tensor pooled_images(const Tensor& x, const Pooling& p, const PoolWindow& window, Size2d size,
                     Tensor* indices) {
    if (p.mean) return avg_pooled(x, window, size, p.count_include_pad);
    const Tensors y = max_pooled(p.op, x, window, size, indices != nullptr);
    if (indices != nullptr) *indices = flat_indices(y[1], x, window, size);
    return y[0];
}

Pooled largest_with_indices(const Tensor& x, const Pooling& p) {
    const CompositeOp here(p.op);
    Tensor indices[2];
    const Tensor values = pooled(x, p, indices);
    if (p.first > 0) return {values, indices[0].reshape(values.shape())};
    const std::int64_t pixels = p.out[1] * p.out[2];
    const Tensor column = arange(pixels, {.dtype = int64, .device = x.device()}).unsqueeze(1);
    const Tensor slice = cast(cast(indices[1] - column, float64) / double(pixels), int64);
    const Tensor within = gather(indices[0].reshape({x.size(0), p.in[0], pixels, x.size(-1)}), 1, slice);
    return {values, (slice * (p.in[1] * p.in[2]) + within).reshape(values.shape())};
}

template <class Options> Pooling max_pooling(const char* op, const Tensor& x, const Options& o) {
    return pooling_of(op, x, o.kernel_size, o.stride, o.padding, o.dilation, o.ceil_mode);
}

}  // namespace

#define MEZZO_MAX_POOL(name, adaptive, Options, Size)                                    \
    Tensor name(const Tensor& x, const Options& o) {                                     \
        const CompositeOp here(#name);                                                   \
        return pooled(x, max_pooling(#name, x, o));                                      \
    }                                                                                    \
    Pooled name##_with_indices(const Tensor& x, const Options& o) {                      \
        return largest_with_indices(x, max_pooling(#name "_with_indices", x, o));        \
    }                                                                                    \
    Tensor adaptive(const Tensor& x, Size size) {                                        \
        const CompositeOp here(#adaptive);                                               \
        return pooled(x, adaptive_of(#adaptive, x, size));                               \
    }                                                                                    \
    Pooled adaptive##_with_indices(const Tensor& x, Size size) {                         \
        return largest_with_indices(x, adaptive_of(#adaptive "_with_indices", x, size)); \
    }
MEZZO_MAX_POOL(max_pool1d, adaptive_max_pool1d, MaxPool1dOptions, std::int64_t)
MEZZO_MAX_POOL(max_pool2d, adaptive_max_pool2d, MaxPool2dOptions, Size2d)
MEZZO_MAX_POOL(max_pool3d, adaptive_max_pool3d, MaxPool3dOptions, Size3d)

Tensor avg_pool1d(const Tensor& x, const AvgPool1dOptions& o) {
    const CompositeOp here("avg_pool1d");
    return averaged(x, pooling_of("avg_pool1d", x, o.kernel_size, o.stride, o.padding, 1, o.ceil_mode),
                    o.count_include_pad);
}
Tensor avg_pool2d(const Tensor& x, const AvgPool2dOptions& o) {
    const CompositeOp here("avg_pool2d");
    return averaged(x,
                    pooling_of("avg_pool2d", x, o.kernel_size, o.stride, o.padding, Size2d(1), o.ceil_mode),
                    o.count_include_pad, o.divisor_override);
}
Tensor avg_pool3d(const Tensor& x, const AvgPool3dOptions& o) {
    return averaged(x,
                    pooling_of("avg_pool3d", x, o.kernel_size, o.stride, o.padding, Size3d(1), o.ceil_mode),
                    o.count_include_pad, o.divisor_override);
}
Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t size) {
    const CompositeOp here("adaptive_avg_pool1d");
    return averaged(x, adaptive_of("adaptive_avg_pool1d", x, size), false);
}
Tensor adaptive_avg_pool2d(const Tensor& x, Size2d size) {
    const CompositeOp here("adaptive_avg_pool2d");
    return averaged(x, adaptive_of("adaptive_avg_pool2d", x, size), false);
}
Tensor adaptive_avg_pool3d(const Tensor& x, Size3d size) {
    const CompositeOp here("adaptive_avg_pool3d");
    return averaged(x, adaptive_of("adaptive_avg_pool3d", x, size), false);
}

}  // namespace mezzo
