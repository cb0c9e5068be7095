// Resizing of images.
#include <vector>

#include "core/enumerators.h"
#include "kernels/resize_geometry.h"
#include "mezzo/image_ops.h"
#include "ops/image.h"

namespace mezzo {

namespace {

Tensor picked(const Tensor& x, int dim, const std::vector<std::int64_t>& pixels) {
    return index_select(x, dim, Tensor::from(pixels, {std::int64_t(pixels.size())}).to(x.device()));
}

// x resized along one dimension.
Tensor resized(const Tensor& x, int dim, std::int64_t results, const kernels::Interpolate& at) {
    std::vector<std::int64_t> pixels, next;
    std::vector<double> weights;
    const std::int64_t size = x.size(dim);
    for (std::int64_t i = 0; i < results; ++i) {
        const auto between = kernels::read_pixels<double>(at, size, results, i);
        pixels.push_back(between.pixel);
        next.push_back(between.next);
        weights.push_back(between.weight);
    }
    if (!at.bilinear) return picked(x, dim, pixels);
    Shape shape = Shape::filled(4, 1);
    shape[dim] = results;
    const Tensor weight = Tensor::from(weights, shape).to(x.dtype()).to(x.device());
    return picked(x, dim, pixels) * (1 - weight) + picked(x, dim, next) * weight;
}

Tensors interpolate_vjp(const Node& c, const kernels::Interpolate& at, const Tensors& g);
Tensors interpolate_grad_vjp(const Node& c, const kernels::InterpolateGrad& at, const Tensors& g);

const Op<kernels::Interpolate> interpolate_op{
    {.saves = save_none}, interpolate_vjp, [](In in, const kernels::Interpolate& at) -> Tensors {
        return {resized(resized(in[0], 1, at.size.height, at), 2, at.size.width, at)};
    }};
const Op<kernels::InterpolateGrad> interpolate_grad_op{{.saves = save_none}, interpolate_grad_vjp};

Tensors interpolate_vjp(const Node& c, const kernels::Interpolate& at, const Tensors& g) {
    return {call(interpolate_grad_op, {g[0]}, {at.bilinear, at.align_corners}, c.inputs[0].shape)};
}
Tensors interpolate_grad_vjp(const Node& c, const kernels::InterpolateGrad& at, const Tensors& g) {
    const Shape& shape = c.inputs[0].shape;
    return {call(interpolate_op, {g[0]}, {{shape[1], shape[2]}, at.bilinear, at.align_corners}, shape)};
}

}  // namespace

Tensor interpolate(const Tensor& x, Size2d size, InterpolateOptions options) {
    check_image("interpolate", x);
    check_enumerator("interpolate", "mode", options.mode, InterpolateMode::bilinear);
    constexpr std::int64_t highest = 0x7fffffff;  // so that products of two sizes fit
    check(size.height > 0 && size.width > 0 && size.height <= highest && size.width <= highest,
          ErrorKind::value, "interpolate: size is ", size.height, " x ", size.width,
          "; both must be 1 to 2^31 - 1");
    const bool bilinear = options.mode == InterpolateMode::bilinear;
    check(bilinear || !options.align_corners, ErrorKind::value,
          "interpolate: align_corners is for bilinear only");
    const Shape shape{x.size(0), size.height, size.width, x.size(3)};
    return call(interpolate_op, {x}, {size, bilinear, options.align_corners}, shape);
}

}  // namespace mezzo
