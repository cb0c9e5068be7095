// max_unpool: elements put at their indices in a flattened image.
#include <span>

#include "autograd/op_observer.h"
#include "mezzo/image_ops.h"
#include "ops/common.h"
#include "ops/pool/image.h"

namespace mezzo {

namespace {

// Options of one axis.
struct Axis {
    std::int64_t kernel, stride, padding, output;
};

std::int64_t unpooled_size(const char* op, std::int64_t size, const Axis& axis) {
    constexpr std::int64_t most = 0x7fffffff;  // so that products of two of them fit
    const std::int64_t stride = axis.stride == 0 ? axis.kernel : axis.stride;
    check(axis.kernel > 0 && axis.kernel <= most && stride > 0 && stride <= most && axis.padding >= 0 &&
              axis.padding <= most && size <= most,
          ErrorKind::value, op, ": kernel_size ", axis.kernel, ", stride ", axis.stride, " or padding ",
          axis.padding, " is out of range");
    const std::int64_t standard = (size - 1) * stride - 2 * axis.padding + axis.kernel;
    const std::int64_t output = axis.output == 0 ? standard : axis.output;
    check(output > 0 && output > standard - stride && output < standard + stride, ErrorKind::value, op,
          ": output_size ", output, " is not between ", standard - stride, " and ", standard + stride);
    return output;
}

// Adds elements up at their indices and divides by their number. In float64, so that equal elements give one
// of them.
Tensor written(const Tensor& x, const Tensor& index, std::int64_t pixels) {
    const Tensor nothing = zeros({x.size(0), pixels, x.size(2)}, {.dtype = float64, .device = x.device()}),
                 values = cast(x, float64);
    const Tensor count = scatter_add(nothing, 1, index, ones_like(values));
    return cast(scatter_add(nothing, 1, index, values) / clamp(count, 1, double(pixels) + 1), x.dtype());
}

Tensor unpooled(const char* op, const Tensor& x, const Tensor& indices, std::span<const Axis> axes) {
    const CompositeOp here(op);
    check_floating(op, x);
    check_defined(op, indices);
    const int dims = int(axes.size()) + 2;
    check(x.dim() == dims, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(), " dimensions, not ",
          dims, missing_dimension_hint(x.dim(), dims));
    check(indices.dtype() == int64, ErrorKind::dtype, op, ": indices are ", indices.dtype(),
          ", but must be int64");
    check_same_shape(op, x, indices);
    Shape shape = x.shape();
    std::int64_t pixels = 1, results = 1;
    for (int d = 1; d + 1 < dims; ++d) {
        shape[d] = unpooled_size(op, x.size(d), axes[std::size_t(d) - 1]);
        pixels *= shape[d];
        results *= x.size(d);
    }
    checked_numel(op, shape, sizeof(double));
    const Shape flat{x.size(0), results, x.size(-1)};
    const auto forward = [&](autograd::Context& c, const Tensors& in) -> Tensors {
        c.saved = {in[1]};
        return {written(in[0], in[1], pixels)};
    };
    const auto backward = [](autograd::Context& c, const Tensors& g) -> Tensors {
        return {gather(g[0], 1, c.saved[0]), Tensor()};
    };
    return autograd::apply_function({.name = op}, forward, backward,
                                    {x.reshape(flat), indices.reshape(flat)})[0]
        .reshape(shape);
}

}  // namespace

Tensor max_unpool1d(const Tensor& x, const Tensor& indices, const MaxUnpool1dOptions& o) {
    const Axis axes[] = {{o.kernel_size, o.stride, o.padding, o.output_size}};
    return unpooled("max_unpool1d", x, indices, axes);
}

Tensor max_unpool2d(const Tensor& x, const Tensor& indices, const MaxUnpool2dOptions& o) {
    const Axis axes[] = {{o.kernel_size.height, o.stride.height, o.padding.height, o.output_size.height},
                         {o.kernel_size.width, o.stride.width, o.padding.width, o.output_size.width}};
    return unpooled("max_unpool2d", x, indices, axes);
}

Tensor max_unpool3d(const Tensor& x, const Tensor& indices, const MaxUnpool3dOptions& o) {
    const Axis axes[] = {{o.kernel_size.depth, o.stride.depth, o.padding.depth, o.output_size.depth},
                         {o.kernel_size.height, o.stride.height, o.padding.height, o.output_size.height},
                         {o.kernel_size.width, o.stride.width, o.padding.width, o.output_size.width}};
    return unpooled("max_unpool3d", x, indices, axes);
}

}  // namespace mezzo
