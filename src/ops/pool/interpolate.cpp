// Resizing of signals, images and volumes. Nearest and linear modes of images have kernels; signals are
// images of height 1, and volumes are resized as images and then along their depth. The other modes, and
// factors that do not give whole sizes, are sums of look-ups along each axis.
#include <algorithm>
#include <cmath>

#include "autograd/op_observer.h"
#include "core/enumerators.h"
#include "kernels/pool.h"
#include "mezzo/image_ops.h"
#include "ops/pool/cubic.h"
#include "ops/pool/image.h"

namespace mezzo {

namespace {

using enum InterpolateMode;

struct Resize {
    static constexpr const char* name = "resize";
    InterpolateMode mode = nearest;
    bool align_corners = false;
    // Numbers for the axes between batch and channels. A factor is 0 where coordinates follow from the
    // sizes.
    std::int64_t sizes[3] = {};
    double factors[3] = {};
};

// The nearest pixels, with PyTorch's arithmetic in float.
Tensor nearest_pixels(const Resize& at, double factor, std::int64_t size, std::int64_t results,
                      Device device) {
    const float step = factor == 0 ? float(size) / float(results) : float(1 / factor);
    const Tensor i = arange(results, {.dtype = float32, .device = device}) + (at.mode == nearest ? 0 : 0.5);
    return cast(clamp(floor(i * double(step)), 0, double(size - 1)), int64);
}

// Positions of the results between the centres of pixels.
Tensor positions(const Resize& at, double factor, std::int64_t size, std::int64_t results, Device device) {
    const Tensor i = arange(results, {.dtype = float64, .device = device});
    if (at.align_corners) return i * (results > 1 ? double(size - 1) / double(results - 1) : 0);
    return (i + 0.5) * (factor == 0 ? double(size) / double(results) : 1 / factor) - 0.5;
}

// x resized along one dimension: a sum of as many look-ups as the mode reads pixels. Indices and weights are
// made on the device, so that a captured step can contain it.
Tensor resized(const Tensor& x, int dim, std::int64_t results, const Resize& at, double factor) {
    const std::int64_t size = x.size(dim);
    if (at.mode == nearest || at.mode == nearest_exact) {
        if (size == results && factor == 0) return x;
        return index_select(x, dim, nearest_pixels(at, factor, size, results, x.device()));
    }
    const bool cubic = at.mode == bicubic;
    const int taps = cubic ? 4 : 2;
    Tensor position = positions(at, factor, size, results, x.device());
    if (!cubic) position = clamp(position, 0, double(size - 1));
    const Tensor first = floor(position), t = position - first;
    Tensors pixels, weights;
    for (int k = 0; k < taps; ++k) {
        pixels.push_back(clamp(first + double(cubic ? k - 1 : k), 0, double(size - 1)));
        weights.push_back(cubic ? cubic_weight(t, k) : k == 0 ? 1.0 - t : t);
    }
    Shape parts = x.shape(), shape = Shape::filled(x.dim() + 1, 1);
    parts[dim] = shape[dim + 1] = results;
    parts.insert(dim, taps);
    shape[dim] = taps;
    const Tensor read = index_select(x, dim, cast(cat(pixels), int64)).reshape(parts);
    return sum(read * cast(cat(weights), x.dtype()).reshape(shape), {dim});
}

Tensors interpolate_vjp(const Node& c, const kernels::Interpolate& at, const Tensors& g);
Tensors interpolate_grad_vjp(const Node& c, const kernels::InterpolateGrad& at, const Tensors& g);

const Op<kernels::Interpolate> interpolate_op{
    {.saves = save_none}, interpolate_vjp, [](In in, const kernels::Interpolate& at) -> Tensors {
        const Resize how{.mode = at.bilinear ? bilinear : nearest, .align_corners = at.align_corners};
        return {resized(resized(in[0], 1, at.size.height, how, 0), 2, at.size.width, how, 0)};
    }};
const Op<kernels::InterpolateGrad> interpolate_grad_op{{.saves = save_none}, interpolate_grad_vjp};

Tensors interpolate_vjp(const Node& c, const kernels::Interpolate& at, const Tensors& g) {
    return {call(interpolate_grad_op, {g[0]}, {at.bilinear, at.align_corners}, c.inputs[0].shape)};
}
Tensors interpolate_grad_vjp(const Node& c, const kernels::InterpolateGrad& at, const Tensors& g) {
    const Shape& shape = c.inputs[0].shape;
    return {call(interpolate_op, {g[0]}, {{shape[1], shape[2]}, at.bilinear, at.align_corners}, shape)};
}

// A volume resized as images, and then lines of their pixels along the depth.
Tensor resized_volume(const Tensor& x, const std::int64_t* sizes, bool linearly, bool align_corners) {
    const std::int64_t n = x.size(0), depth = x.size(1), c = x.size(4), pixels = sizes[1] * sizes[2];
    const auto resize = [&](const Tensor& images, Size2d size) {
        return call(interpolate_op, {images}, {size, linearly, align_corners},
                    {images.size(0), size.height, size.width, c});
    };
    const Tensor slices = resize(x.reshape({n * depth, x.size(2), x.size(3), c}), {sizes[1], sizes[2]});
    return resize(slices.reshape({n, depth, pixels, c}), {sizes[0], pixels})
        .reshape({n, sizes[0], sizes[1], sizes[2], c});
}

bool has_factor(const Resize& at) { return at.factors[0] != 0 || at.factors[1] != 0 || at.factors[2] != 0; }

Tensors resize_decomposition(In in, const Resize& at) {
    if (at.mode == trilinear && !has_factor(at))
        return {resized_volume(in[0], at.sizes, true, at.align_corners)};
    Tensor y = in[0];
    for (int d = 1; d + 1 < in[0].dim(); ++d) y = resized(y, d, at.sizes[d - 1], at, at.factors[d - 1]);
    return {y};
}

const Op<Resize> resize_op{{}, nullptr, resize_decomposition};

// ---- checks

void check_mode(const Tensor& x, const InterpolateOptions& options) {
    const char* op = "interpolate";
    check_enumerator(op, "mode", options.mode, nearest_exact);
    check_defined(op, x);
    check_pixels(op, x, std::clamp(x.dim() - 2, 1, 3));
    const InterpolateMode mode = options.mode;
    const int axes = mode == linear ? 1 : mode == bilinear || mode == bicubic ? 2 : mode == trilinear ? 3 : 0;
    check(axes == 0 || axes == x.dim() - 2, ErrorKind::value, op, ": input ", x.shape(),
          " does not fit the mode; linear is for signals, bilinear and bicubic for images, trilinear for "
          "volumes");
    check(axes != 0 || !options.align_corners, ErrorKind::value, op,
          ": align_corners is for linear, bilinear, bicubic and trilinear only");
}

Tensor averaged(const Tensor& x, const std::int64_t* sizes) {
    if (x.dim() == 3) return adaptive_avg_pool1d(x, sizes[0]);
    if (x.dim() == 4) return adaptive_avg_pool2d(x, {sizes[0], sizes[1]});
    return adaptive_avg_pool3d(x, {sizes[0], sizes[1], sizes[2]});
}

Tensor interpolated(const Tensor& x, const Resize& at) {
    constexpr std::int64_t highest = 0x7fffffff;  // so that products of two sizes fit
    const Shape sizes(at.sizes, x.dim() - 2);
    for (const std::int64_t size : sizes)
        check(size > 0 && size <= highest, ErrorKind::value, "interpolate: size is ", sizes,
              "; each must be 1 to 2^31 - 1");
    if (at.mode == area) return averaged(x, at.sizes);
    Shape shape = x.shape();
    for (int d = 1; d + 1 < x.dim(); ++d) shape[d] = at.sizes[d - 1];
    const bool by_kernel = at.mode == nearest || at.mode == linear || at.mode == bilinear;
    if (!by_kernel || has_factor(at)) return call(resize_op, {x}, at, shape);
    if (x.dim() == 5) return resized_volume(x, at.sizes, false, false);
    const bool linearly = at.mode != nearest;
    if (x.dim() == 4)
        return call(interpolate_op, {x}, {{at.sizes[0], at.sizes[1]}, linearly, at.align_corners}, shape);
    shape.insert(1, 1);
    return call(interpolate_op, {x.unsqueeze(1)}, {{1, at.sizes[0]}, linearly, at.align_corners}, shape)
        .squeeze(1);
}

}  // namespace

Tensor interpolate(const Tensor& x, const Shape& size, const InterpolateOptions& options) {
    const CompositeOp here("interpolate");
    check_mode(x, options);
    const int axes = x.dim() - 2;
    check(options.scale_factor.count == 0, ErrorKind::value,
          "interpolate: both a size and scale_factor; give one of them");
    check(size.size() == 1 || size.size() == axes, ErrorKind::value, "interpolate: size ", size, " for ",
          axes, " axes; give one number, or one for each");
    Resize at{.mode = options.mode, .align_corners = options.align_corners};
    for (int d = 0; d < axes; ++d) at.sizes[d] = size[size.size() == 1 ? 0 : d];
    return interpolated(x, at);
}

Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
    const CompositeOp here("interpolate");
    check_mode(x, options);
    const int axes = x.dim() - 2;
    const ScaleFactor& scale = options.scale_factor;
    check(scale.count == 1 || scale.count == axes, ErrorKind::value, "interpolate: ", scale.count,
          " scale factors for ", axes, " axes; give one, or one for each");
    Resize at{.mode = options.mode, .align_corners = options.align_corners};
    for (int d = 0; d < axes; ++d) {
        const double factor = scale.values[scale.count == 1 ? 0 : d], size = double(x.size(d + 1)) * factor;
        check(factor > 0 && std::isfinite(factor), ErrorKind::value, "interpolate: scale_factor is ", factor,
              "; it must be positive");
        at.sizes[d] = std::int64_t(std::min(size, 0x1p40));  // interpolated() refuses that many
        if (!options.recompute_scale_factor && size != double(at.sizes[d])) at.factors[d] = factor;
    }
    return interpolated(x, at);
}

}  // namespace mezzo
