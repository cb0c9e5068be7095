// grid_sample and affine_grid. A sample is a sum of the pixels around a position: along each axis the pixels
// that it reads, their weights, and whether they are in the image. The gradient by a position is that of the
// weights.
#include <vector>

#include "core/enumerators.h"
#include "mezzo/image_ops.h"
#include "mezzo/pointwise_ops.h"
#include "ops/image.h"

namespace mezzo {

namespace {

using enum InterpolateMode;

struct GridSample {
    static constexpr const char* name = "grid_sample";
    InterpolateMode mode = bilinear;
    PadMode padding = PadMode::constant;
    bool align_corners = false;
};

// One of the pixels along an axis that each position reads. Weights are undefined for 1.
struct Tap {
    Tensor pixel;   // int64, in the image
    Tensor inside;  // boolean, or undefined if all are
    Tensor weight;
};

// Positions mirrored at both borders as often as needed: at the centres of the outer pixels with
// align_corners, otherwise at their outer edges.
Tensor reflected(const Tensor& x, std::int64_t size, bool align_corners) {
    const double low = align_corners ? 0 : -0.5, span = align_corners ? double(size - 1) : double(size);
    if (span == 0) return masked_fill(x, eq(x, x), 0);
    return span - abs(remainder(x - low, 2 * span) - span) + low;
}

// Positions that are whole numbers, as the pixel that they are in `padding`.
Tap tap_at(const Tensor& position, std::int64_t size, const GridSample& at, const Tensor& weight) {
    const double last = double(size - 1);
    Tensor whole = position.detach();
    if (at.padding == PadMode::reflect) whole = round(reflected(whole, size, at.align_corners));
    const Tensor pixel = cast(clamp(whole, 0, last), int64);
    if (at.padding != PadMode::constant) return {pixel, {}, weight};
    const Tensor inside = logical_and(ge(whole, 0), le(whole, last));
    return {pixel, inside, weight.defined() ? masked_fill(weight, logical_not(inside), 0) : weight};
}

// Weights of the four pixels around positions that lie t behind the second of them: cubic convolution with a
// = -0.75, as in interpolate().
std::vector<Tensor> cubic_weights(const Tensor& t) {
    static constexpr double a = -0.75;
    const auto near = [](const Tensor& d) { return ((a + 2) * d - (a + 3)) * d * d + 1.0; };
    const auto far = [](const Tensor& d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    return {far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)};
}

// What positions along an axis read; `grid` has numbers from -1 to 1.
std::vector<Tap> taps_along(const Tensor& grid, std::int64_t size, const GridSample& at) {
    const double n = double(size);
    Tensor x = at.align_corners ? (grid + 1.0) * ((n - 1) / 2) : ((grid + 1.0) * n - 1.0) * 0.5;
    if (at.mode != bicubic && at.padding != PadMode::constant) {
        if (at.padding == PadMode::reflect) x = reflected(x, size, at.align_corners);
        x = clamp(x, 0, n - 1);
    }
    x = masked_fill(x, logical_not(isfinite(x)), -100);  // outside of the image for every mode
    if (at.mode == nearest) return {tap_at(round(x), size, at, {})};
    const Tensor first = floor(x).detach(), t = x - first;
    if (at.mode == bilinear) return {tap_at(first, size, at, 1.0 - t), tap_at(first + 1.0, size, at, t)};
    const std::vector<Tensor> weights = cubic_weights(t);
    std::vector<Tap> taps;
    for (int k = 0; k < 4; ++k)
        taps.push_back(tap_at(first + double(k - 1), size, at, weights[std::size_t(k)]));
    return taps;
}

// Undefined tensors are left out.
Tensor both(const Tensor& a, const Tensor& b, Tensor (*f)(const Tensor&, const Tensor&)) {
    return !a.defined() ? b : !b.defined() ? a : f(a, b);
}

// Sum over the taps of axes d, d + 1, ... of the image, from the rows of pixels [N * pixels, C]. `outer`: the
// pixels, conditions and weights of the axes before.
Tensor summed(const Tensor& rows, const Shape& image, const std::vector<std::vector<Tap>>& taps,
              std::size_t d, const Tap& outer) {
    if (d == taps.size()) {
        Tensor y = index_select(rows, 0, outer.pixel.reshape({outer.pixel.numel()}));
        const Shape column{outer.pixel.numel(), 1};
        if (outer.inside.defined()) y = masked_fill(y, logical_not(outer.inside).reshape(column), 0);
        return outer.weight.defined() ? y * outer.weight.reshape(column) : y;
    }
    Tensor sum;
    for (const Tap& tap : taps[d]) {
        const Tap here{outer.pixel * image[int(d) + 1] + tap.pixel,
                       both(outer.inside, tap.inside, logical_and), both(outer.weight, tap.weight, mul)};
        const Tensor part = summed(rows, image, taps, d + 1, here);
        sum = sum.defined() ? sum + part : part;
    }
    return sum;
}

const Op<GridSample> grid_sample_op{
    {.cast = CastPolicy::promote}, nullptr, [](In in, const GridSample& at) -> Tensors {
        const Tensor &x = in[0], grid = masked_fill(in[1], isnan(in[1]), -1);
        const int axes = x.dim() - 2;
        std::vector<std::vector<Tap>> taps;
        for (int d = 0; d < axes; ++d)
            taps.push_back(taps_along(grid.select(-1, axes - 1 - d), x.size(d + 1), at));
        Shape shape = grid.shape(), batch = Shape::filled(axes + 1, 1);
        shape.back() = x.size(-1);
        batch[0] = x.size(0);
        const Tensor sample = arange(x.size(0), {.dtype = int64, .device = x.device()}).reshape(batch);
        const Tensor rows = x.reshape({x.numel() / std::max<std::int64_t>(1, x.size(-1)), x.size(-1)});
        return {summed(rows, x.shape(), taps, 0, {sample, {}, {}}).reshape(shape)};
    }};

struct AffineGrid {
    static constexpr const char* name = "affine_grid";
    Shape size;
    bool align_corners = false;
};

const Op<AffineGrid> affine_grid_op{
    {}, nullptr, [](In in, const AffineGrid& at) -> Tensors {
        const Tensor& theta = in[0];
        const int axes = at.size.size() - 2;
        const TensorOptions like{.dtype = theta.dtype(), .device = theta.device()};
        // Column c of theta, [N, 1, ..., axes].
        const auto column = [&](int c) {
            Shape shape = Shape::filled(axes + 2, 1);
            shape[0] = theta.size(0);
            shape.back() = axes;
            return theta.select(2, c).reshape(shape);
        };
        Tensor y = column(axes);
        for (int c = 0; c < axes; ++c) {
            const int d = axes - c;  // x is the last axis of an image
            const std::int64_t n = at.size[d];
            const double step = at.align_corners ? (n > 1 ? 2.0 / double(n - 1) : 0) : 2.0 / double(n);
            const double first = n == 1 ? 0 : at.align_corners ? -1 : 1.0 / double(n) - 1;
            Shape shape = Shape::filled(axes + 2, 1);
            shape[d] = n;
            y = y + column(c) * (arange(n, like) * step + first).reshape(shape);
        }
        return {y};
    }};

}  // namespace

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options) {
    const char* op = "grid_sample";
    check_enumerator(op, "mode", options.mode, nearest_exact);
    check_enumerator(op, "padding_mode", options.padding_mode, PadMode::circular);
    check_floating(op, x);
    check_floating(op, grid, "grid");
    check(x.dim() == 4 || x.dim() == 5, ErrorKind::shape, op, ": input ", x.shape(),
          " is neither an image nor a volume", image_layout);
    const int axes = x.dim() - 2;
    check(grid.dim() == x.dim() && grid.size(-1) == axes && grid.size(0) == x.size(0), ErrorKind::shape, op,
          ": grid ", grid.shape(), " does not fit input ", x.shape(), "; it has a position of ", axes,
          " numbers for every element of the result");
    for (int d = 1; d <= axes; ++d)
        check(x.size(d) > 0, ErrorKind::shape, op, ": input ", x.shape(), " has no pixels", image_layout);
    check(options.mode == bilinear || options.mode == nearest || (options.mode == bicubic && axes == 2),
          ErrorKind::value, op, ": the mode must be bilinear or nearest, or, of images, bicubic");
    check(options.padding_mode != PadMode::circular, ErrorKind::value, op,
          ": padding_mode must be constant, replicate or reflect");
    check(x.dtype() == grid.dtype() || (autocast_takes(x) && autocast_takes(grid)), ErrorKind::dtype, op,
          ": input is ", x.dtype(), " and grid ", grid.dtype(), "; convert one with to()");
    Shape shape = grid.shape();
    shape.back() = x.size(-1);
    return call(grid_sample_op, {x, grid}, {options.mode, options.padding_mode, options.align_corners},
                shape);
}

Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners) {
    const char* op = "affine_grid";
    check_floating(op, theta, "theta");
    check(size.size() == 4 || size.size() == 5, ErrorKind::shape, op, ": size ", size,
          " is neither [batch, height, width, channels] nor [batch, depth, height, width, channels]");
    const int axes = size.size() - 2;
    check(theta.shape() == Shape{size[0], axes, axes + 1}, ErrorKind::shape, op, ": theta ", theta.shape(),
          " does not fit size ", size, "; it must be ", Shape{size[0], axes, axes + 1});
    for (const std::int64_t n : size)
        check(n > 0, ErrorKind::value, op, ": size ", size, " has numbers that are not positive");
    Shape shape = size;
    shape.back() = axes;
    return call(affine_grid_op, {theta}, {size, align_corners}, shape);
}

}  // namespace mezzo
