// The ops of pooling. Those of the gradients are linear, and their gradients are ops of this file, too.
#include "ops/pool/pool.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/pool_geometry.h"

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

// Kernel positions as kernels::MaxPool2d has them: as uint8, or, in windows of more positions than that
// holds, as four bytes each.
Tensor position_bytes(const Tensor& positions, std::int64_t count) {
    if (count <= kernels::byte_places) return cast(positions, uint8);
    Tensors bytes;
    for (int k = 0; k < 4; ++k)
        bytes.push_back(cast(remainder(floor(positions * std::ldexp(1.0, -8 * k)), 256), uint8));
    return stack(bytes, -1);
}

Tensors max_pool2d_decomposition(In in, const kernels::MaxPool2d& at) {
    const Tensor& x = in[0];
    const Shape shape{x.size(0), at.size.height, at.size.width, x.size(3)};
    Tensor best =
        full(shape, -std::numeric_limits<double>::infinity(), {.dtype = x.dtype(), .device = x.device()});
    Tensor found;  // whether the window has had a pixel
    Tensor position = zeros(shape, {.dtype = float64, .device = x.device()});
    double count = 0;
    for_places(x, at.window, at.size, [&](const Tensor& v, const Tensor& inside) {
        const Tensor larger = logical_or(gt(v, best), ne(v, v));
        const Tensor better = found.defined() ? logical_or(larger, logical_not(found)) : inside;
        const Tensor taken = logical_and(inside, better);
        best = where(taken, v, best);
        position = where(taken, count++, position);
        found = found.defined() ? logical_or(found, inside) : inside;
    });
    return {best, position_bytes(position, std::int64_t(count))};
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

Shape result_shape(const Tensor& x, Size2d size) { return {x.size(0), size.height, size.width, x.size(3)}; }

}  // namespace

Tensors max_pooled(const char* op, const Tensor& x, const PoolWindow& window, Size2d size, bool positions) {
    const Shape shape = result_shape(x, size);
    const std::int64_t height = places_along(window.height, x.size(1), size.height),
                       width = places_along(window.width, x.size(2), size.width);
    std::int64_t count = 0;
    check(!__builtin_mul_overflow(height, width, &count) && count - 1 <= 0xffffffff, ErrorKind::value, op,
          ": a window of ", height, " x ", width, " has more than 2^32 places");
    Shape places = shape;
    if (count > kernels::byte_places) places.push_back(4);
    const Shape shapes[] = {shape, places};
    return call(max_pool2d_op, Tensors{x}, {window, size},
                std::span(shapes, positions || recording(x) ? 2 : 1));
}

Tensor avg_pooled(const Tensor& x, const PoolWindow& window, Size2d size, bool count_include_pad) {
    return call(avg_pool2d_op, {x}, {window, size, count_include_pad}, result_shape(x, size));
}

}  // namespace mezzo
