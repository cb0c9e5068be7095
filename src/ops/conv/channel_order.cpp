// pixel_shuffle, pixel_unshuffle and channel_shuffle: permutations of elements.
#include "autograd/op_observer.h"
#include "mezzo/image_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

// x [..., H, W, C] as [N, H, W, C].
Tensor as_images(const char* op, const Tensor& x) {
    check_defined(op, x);
    check(x.dim() >= 3, ErrorKind::shape, op, ": input ", x.shape(),
          " has fewer than three dimensions; images are [..., height, width, channels]");
    std::int64_t n = 1;
    for (int d = 0; d + 3 < x.dim(); ++d) n *= x.size(d);
    return x.reshape({n, x.size(-3), x.size(-2), x.size(-1)});
}

// The shape of x with other sizes at the end.
Shape with_last(Shape shape, std::int64_t height, std::int64_t width, std::int64_t channels) {
    shape[shape.size() - 3] = height;
    shape[shape.size() - 2] = width;
    shape.back() = channels;
    return shape;
}

void check_factor(const char* op, const char* what, std::int64_t r) {
    check(r > 0 && r < std::int64_t(1) << 31, ErrorKind::value, op, ": ", what, " ", r,
          " is not in [1, 2^31)");
}

}  // namespace

Tensor pixel_shuffle(const Tensor& x, std::int64_t r) {
    const char* op = "pixel_shuffle";
    const CompositeOp here(op);
    const Tensor images = as_images(op, x);
    check_factor(op, "upscale_factor", r);
    const std::int64_t n = images.size(0), h = x.size(-3), w = x.size(-2), c = x.size(-1) / (r * r);
    check(x.size(-1) == c * r * r, ErrorKind::shape, op, ": the ", x.size(-1), " channels of input ",
          x.shape(), " are not divisible by ", r, "^2");
    const Tensor y = images.reshape({n, h, w, c, r, r}).permute({0, 1, 4, 2, 5, 3});
    return in_own_memory(y.reshape(with_last(x.shape(), h * r, w * r, c)), x);
}

Tensor pixel_unshuffle(const Tensor& x, std::int64_t r) {
    const char* op = "pixel_unshuffle";
    const CompositeOp here(op);
    const Tensor images = as_images(op, x);
    check_factor(op, "downscale_factor", r);
    const std::int64_t n = images.size(0), h = x.size(-3) / r, w = x.size(-2) / r, c = x.size(-1);
    check(x.size(-3) == h * r && x.size(-2) == w * r, ErrorKind::shape, op, ": height and width of input ",
          x.shape(), " are not divisible by ", r);
    const Tensor y = images.reshape({n, h, r, w, r, c}).permute({0, 1, 3, 5, 2, 4});
    return in_own_memory(y.reshape(with_last(x.shape(), h, w, c * r * r)), x);
}

Tensor channel_shuffle(const Tensor& x, std::int64_t groups) {
    const char* op = "channel_shuffle";
    const CompositeOp here(op);
    check_defined(op, x);
    check(x.dim() >= 3, ErrorKind::shape, op, ": input ", x.shape(), " has fewer than three dimensions");
    check_factor(op, "groups", groups);
    check(x.size(-1) % groups == 0, ErrorKind::shape, op, ": ", groups, " groups do not divide the ",
          x.size(-1), " channels of input ", x.shape());
    const std::int64_t rows = x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
    const Tensor y = x.reshape({rows, groups, x.size(-1) / groups}).permute({0, 2, 1});
    return in_own_memory(y.reshape(x.shape()), x);
}

}  // namespace mezzo
