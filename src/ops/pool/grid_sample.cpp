// grid_sample and affine_grid. A sample is a sum of the pixels around a position: along each axis the pixels
// that it reads, their weights, and whether they are in the image. The gradient by a position is that of the
// weights.
#include <algorithm>

#include "autograd/op_observer.h"
#include "mezzo/image_ops.h"
#include "mezzo/pointwise_ops.h"
#include "ops/pool/cubic.h"
#include "ops/pool/image.h"

namespace mezzo {

namespace {

using enum InterpolateMode;

struct GridSample {
    static constexpr const char* name = "grid_sample";
    InterpolateMode mode = bilinear;
    PadMode padding = PadMode::constant;
    bool align_corners = false;
};

// One of the pixels along an axis that each position reads, all of one shape.
struct Tap {
    Tensor pixel;   // int64, in the image
    Tensor inside;  // boolean, or undefined if all are
    Tensor weight;  // undefined: 1
};

// Positions mirrored at both borders as often as needed: at the centres of the outer pixels with
// align_corners, otherwise at their outer edges.
Tensor reflected(const Tensor& x, std::int64_t size, bool align_corners) {
    const double low = align_corners ? 0 : -0.5, span = align_corners ? double(size - 1) : double(size);
    if (span == 0) return zeros_like(x);
    return span - abs(remainder(x - low, 2 * span) - span) + low;
}

// The pixel at positions that are whole numbers, as `padding` says.
Tap tap_at(Tensor position, std::int64_t size, const GridSample& at, const Tensor& weight) {
    const double last = double(size - 1);
    if (at.padding == PadMode::reflect) position = round(reflected(position, size, at.align_corners));
    const Tensor pixel = cast(clamp(position, 0, last), int64);
    if (at.padding != PadMode::constant) return {pixel, {}, weight};
    return {pixel, logical_and(ge(position, 0), le(position, last)), weight};
}

// Writes what positions along an axis read to taps, and returns the number of pixels. `grid` has numbers from
// -1 to 1.
int read_along(const Tensor& grid, std::int64_t size, const GridSample& at, Tap* taps) {
    const double n = double(size), scale = at.align_corners ? (n - 1) / 2 : n / 2;
    Tensor x = (grid + 1.0) * scale + (at.align_corners ? 0 : -0.5);
    if (at.mode != bicubic && at.padding != PadMode::constant) {
        if (at.padding == PadMode::reflect) x = reflected(x, size, at.align_corners);
        x = clamp(x, 0, n - 1);
    }
    x = masked_fill(x, logical_not(isfinite(x)), -100);  // outside of the image for every mode
    const Tensor first = (at.mode == nearest ? round(x) : floor(x)).detach(), t = x - first;
    if (at.mode == nearest) {
        taps[0] = tap_at(first, size, at, {});
        return 1;
    }
    const int count = at.mode == bicubic ? 4 : 2, before = at.mode == bicubic ? 1 : 0;
    for (int k = 0; k < count; ++k) {
        const Tensor weight = count == 4 ? cubic_weight(t, k) : k == 0 ? 1.0 - t : t;
        taps[k] = tap_at(first + double(k - before), size, at, weight);
    }
    return count;
}

// Undefined tensors are left out.
Tensor both(const Tensor& a, const Tensor& b, Tensor (*f)(const Tensor&, const Tensor&)) {
    return !a.defined() ? b : !b.defined() ? a : f(a, b);
}

Tensors grid_sample_decomposition(In in, const GridSample& at) {
    const Tensor &x = in[0], grid = masked_fill(in[1], isnan(in[1]), -1);
    const int axes = x.dim() - 2;
    Tap taps[3][4];
    int count = 0, combinations = 1;
    for (int d = 0; d < axes; ++d) {
        count = read_along(grid.select(-1, axes - 1 - d), x.size(d + 1), at, taps[d]);
        combinations *= count;
    }
    Shape shape = grid.shape(), batch = Shape::filled(axes + 1, 1);
    shape.back() = x.size(-1);
    batch[0] = x.size(0);
    const Shape column{shape[0] * (grid.numel() == 0 ? 0 : grid.numel() / axes / shape[0]), 1};
    const Tensor sample = arange(x.size(0), {.dtype = int64, .device = x.device()}).reshape(batch);
    std::int64_t pixels = x.size(0);
    for (int d = 1; d <= axes; ++d) pixels *= x.size(d);
    const Tensor rows = x.reshape({pixels, x.size(-1)});
    Tensor sum;
    for (int i = 0; i < combinations; ++i) {
        Tap all{sample, {}, {}};
        for (int d = 0, rest = i; d < axes; ++d, rest /= count) {
            const Tap& tap = taps[d][rest % count];
            all.pixel = all.pixel * x.size(d + 1) + tap.pixel;
            all.inside = both(all.inside, tap.inside, logical_and);
            all.weight = both(all.weight, tap.weight, mul);
        }
        Tensor y = index_select(rows, 0, all.pixel.reshape({column[0]}));
        if (all.inside.defined()) y = masked_fill(y, logical_not(all.inside).reshape(column), 0);
        if (all.weight.defined()) y = y * all.weight.reshape(column);
        sum = both(sum, y, add);
    }
    return {sum.reshape(shape)};
}

const Op<GridSample> grid_sample_op{{.cast = CastPolicy::promote}, nullptr, grid_sample_decomposition};

}  // namespace

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options) {
    const char* op = "grid_sample";
    check_defined(op, x);
    const int axes = std::clamp(x.dim() - 2, 2, 3);
    check_pixels(op, x, axes);
    check_floating(op, grid, "grid");
    check(grid.dim() == x.dim() && grid.size(-1) == axes && grid.size(0) == x.size(0), ErrorKind::shape, op,
          ": grid ", grid.shape(), " does not fit input ", x.shape(), "; it has a position of ", axes,
          " numbers for every element of the result");
    check(options.mode == bilinear || options.mode == nearest || (options.mode == bicubic && axes == 2),
          ErrorKind::value, op, ": the mode must be bilinear or nearest, or, of images, bicubic");
    check(options.padding_mode <= PadMode::replicate, ErrorKind::value, op,
          ": padding_mode must be constant, reflect or replicate");
    check(x.dtype() == grid.dtype() || (autocast_takes(x) && autocast_takes(grid)), ErrorKind::dtype, op,
          ": input is ", x.dtype(), " and grid ", grid.dtype(), "; convert one with to()");
    Shape shape = grid.shape();
    shape.back() = x.size(-1);
    return call(grid_sample_op, {x, grid}, {options.mode, options.padding_mode, options.align_corners},
                shape);
}

Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners) {
    const char* op = "affine_grid";
    const CompositeOp here(op);
    check_floating(op, theta, "theta");
    const int axes = size.size() - 2;
    check(
        (axes == 2 || axes == 3) && theta.shape() == Shape{size[0], axes, axes + 1}, ErrorKind::shape, op,
        ": theta ", theta.shape(), " does not fit size ", size,
        "; they are [batch, 2, 3] and [batch, height, width, channels], or [batch, 3, 4] and [batch, depth, "
        "height, width, channels]");
    const Tensor columns = widened(theta);
    Shape shape = Shape::filled(axes + 2, 1);
    shape[0] = size[0];
    shape.back() = axes;
    Tensor y = columns.select(2, axes).reshape(shape);
    for (int c = 0; c < axes; ++c) {
        Shape along = Shape::filled(axes + 2, 1);
        const std::int64_t n = along[axes - c] = size[axes - c];  // x is the last axis of an image
        check(n > 0, ErrorKind::value, op, ": size ", size, " has numbers that are not positive");
        const double step = 2.0 / double(align_corners ? std::max<std::int64_t>(n - 1, 1) : n);
        const Tensor places = arange(n, {.dtype = columns.dtype(), .device = theta.device()});
        y = y + columns.select(2, c).reshape(shape) * ((places - double(n - 1) / 2) * step).reshape(along);
    }
    return cast(y, theta.dtype());
}

}  // namespace mezzo
