#include "mezzo/quantize.h"

#include "autograd/autocast_state.h"
#include "core/enumerators.h"
#include "ops/common.h"

namespace mezzo {

namespace {

constexpr double least_scale = 0x1p-126, largest_scale = 0x1p126;

// The largest magnitude of each group; NaN wins.
Tensor largest(const Tensor& x, Granularity granularity) {
    if (granularity == Granularity::row) return max(abs(x), -1, keep_dims());
    Axes all;
    for (int d = 0; d < x.dim(); ++d) all.push_back(d);
    return max(abs(x), all, keep_dims());
}

// The largest power of two that is not above x. Casts to E8M0 round to the nearer power.
Tensor power_below(const Tensor& x) {
    const Tensor power = cast(cast(x, float8_e8m0fnu), float32);
    return where(power > x, power * 0.5, power);
}

}  // namespace

Quantized quantize(const Tensor& x, const QuantizeOptions& options) {
    check_floating("quantize", x);
    check_dtype("quantize", options.dtype);
    check(options.dtype == float8_e4m3fn || options.dtype == float8_e5m2, ErrorKind::dtype,
          "quantize: dtype is ", options.dtype, "; it must be float8_e4m3fn or float8_e5m2");
    check_enumerator("quantize", "granularity", options.granularity, Granularity::row);
    check(options.granularity == Granularity::tensor || x.dim() > 0, ErrorKind::shape,
          "quantize: a scale for each row of a tensor without dimensions");
    const NoGrad no_grad;
    const NoAutocast plain;
    const Tensor wide = cast(x, float32);
    Shape groups = x.shape();
    for (int d = options.granularity == Granularity::row ? groups.size() - 1 : 0; d < groups.size(); ++d)
        groups[d] = 1;
    if (x.numel() == 0)
        return {empty(x.shape(), {.dtype = options.dtype, .device = x.device()}),
                ones(groups, {.device = x.device()})};
    const Tensor top = largest(wide, options.granularity);
    const double largest_code = dtype_info(options.dtype).max;
    // Without infinities on the way, which DetectAnomaly would report.
    const Tensor ratio = clamp(largest_code / clamp(top, largest_code / largest_scale, 0x1.fffffep127),
                               least_scale, largest_scale);
    const Tensor scale =
        where(isfinite(top) & (top > 0.0), options.exact_scale ? ratio : power_below(ratio), 1.0);
    const Tensor scaled = wide * where(isfinite(wide), scale, 0.0);  // NaN of what is not finite
    return {cast(clamp(scaled, -largest_code, largest_code), options.dtype), scale};
}

Tensor dequantize(const Quantized& q, Dtype dtype) {
    check(q.codes.defined() && q.scale.defined(), ErrorKind::value,
          "dequantize: codes or scale are undefined");
    const NoGrad no_grad;
    const NoAutocast plain;
    const Tensor x = cast(q.codes, float32) / q.scale;
    if (dtype != float16) return cast(x, dtype);
    constexpr double largest_float16 = 65504;  // codes may be rounded beyond it
    return cast(where(isfinite(x), clamp(x, -largest_float16, largest_float16), x), dtype);
}

}  // namespace mezzo
