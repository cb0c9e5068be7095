// p-norms over axes.
#include "ops/reduce/p_norm.h"

#include <cmath>

#include "autograd/op_observer.h"
#include "mezzo/reduce_ops.h"

namespace mezzo {

namespace {

struct PNorm {
    static constexpr const char* name = "vector_norm";
    double p = 2;
    Axes axes = {};
};
const Op<PNorm> p_norm_op{
    {.cast = CastPolicy::fp32_out, .saves = save_none}, nullptr, [](In in, const PNorm& at) -> Tensors {
        return {p_norm(in[0], at.p, at.axes, true)};
    }};

// The largest magnitude, for a negative p the smallest that is not 0: a constant by which all are divided, so
// that no power overflows. `size` is 1 where x is 0.
Tensor scale_of(const Tensor& size, const Tensor& none, double p, const Axes& axes) {
    const NoGrad plain;
    const Tensor m =
        p > 0 ? max(masked_fill(size, none, 0), axes, keep_dims()) : min(size, axes, keep_dims());
    return clamp(m, 0x1p-1000, 0x1p1000);
}

// Any other p, in float64.
Tensor power_norm(const Tensor& given, double p, const Axes& axes) {
    const Tensor none = eq(given, 0.0), x = cast(given, float64);
    if (x.numel() == 0) return sum(x, axes, keep_dims());
    const Tensor size = abs(masked_fill(x, none, 1)), scale = scale_of(size, none, p, axes);
    const double of_none = p > 0 ? 0 : INFINITY;
    const Tensor total = sum(masked_fill(pow(size / scale, p), none, of_none), axes, keep_dims());
    if (p < 0) return scale * pow(total, 1 / p);
    const Tensor zero = eq(total, 0.0);
    return scale * masked_fill(pow(masked_fill(total, zero, 1), 1 / p), zero, 0);
}

}  // namespace

Tensor p_norm(const Tensor& x, double p, const Axes& axes, bool keepdim) {
    const ReduceOptions options{.keepdim = keepdim};
    if (p == 2) return norm(x, axes, options);
    if (p == 1) return sum(abs(x), axes, options);
    if (p == 0) return sum(masked_fill(sign(x), ne(x, 0.0), 1), axes, options);
    if (std::isinf(p)) return p > 0 ? max(abs(x), axes, options) : min(abs(x), axes, options);
    const Tensor y = cast(power_norm(x, p, axes), x.dtype());
    return keepdim ? y : y.reshape(reduced_shape(x.shape(), normal_axes("norm", axes, x.dim()), false));
}

Tensor vector_norm(const Tensor& given, double p, const Axes& axes, ReduceOptions options) {
    const char* name = "vector_norm";
    check_floating(name, given);
    check(!std::isnan(p), ErrorKind::value, name, ": p is NaN");
    if (p == 2) return norm(given, axes, options);
    check(!options.explicit_dtype || is_floating(options.dtype), ErrorKind::dtype, name,
          ": the result's dtype ", options.dtype, " is not floating");
    const Tensor x = options.explicit_dtype ? cast(given, options.dtype) : given;
    const Axes all = normal_axes(name, axes, x.dim());
    check(count_along(x.shape(), all) > 0 || (p >= 0 && !std::isinf(p)), ErrorKind::shape, name,
          ": the norm of nothing is undefined for p ", p, "; input ", x.shape(), ", axes ", all);
    const Tensor norms = call(p_norm_op, {x}, {.p = p, .axes = all}, reduced_shape(x.shape(), all, true));
    const Tensor y = options.explicit_dtype ? cast(norms, options.dtype) : norms;
    return options.keepdim ? y : y.reshape(reduced_shape(x.shape(), all, false));
}

}  // namespace mezzo
