#include "mezzo/quantize.h"

#include <algorithm>
#include <cmath>

#include "autograd/autocast_state.h"
#include "core/enumerators.h"
#include "kernels/dispatch.h"
#include "kernels/fp8.h"
#include "ops/gemm/fp8_product.h"

namespace mezzo {

namespace {

using kernels::fp8_block;

constexpr double least_scale = 0x1p-126, largest_scale = 0x1p126;

// The largest power of two that is not above x. Casts to E8M0 round to the nearer power.
Tensor power_below(const Tensor& x) {
    const Tensor power = cast(cast(x, float8_e8m0fnu), float32);
    return where(power > x, power * 0.5, power);
}

// max |x| of each group that shares a scale, with size 1 in the dimensions that share it. NaN wins.
Tensor largest_magnitude(const Tensor& x, Granularity granularity) {
    if (granularity == Granularity::row) return max(abs(x), -1, keep_dims());
    Axes all;
    for (int d = 0; d < x.dim(); ++d) all.push_back(d);
    return max(abs(x), all, keep_dims());
}

// quantize() of a float32 x with the scale of groups whose largest elements are `largest`, divided by
// 2^margin. Larger elements saturate.
Quantized quantized_for(const Tensor& x, const Tensor& largest, const QuantizeOptions& options,
                        double margin = 0) {
    const double largest_code = dtype_info(options.dtype).max;
    // Without infinities on the way, which DetectAnomaly would report.
    Tensor ratio = largest_code / clamp(largest, largest_code / largest_scale, 0x1.fffffep127);
    if (margin != 0) ratio = ratio * std::exp2(-margin);
    ratio = clamp(ratio, least_scale, largest_scale);
    const Tensor scale =
        where(isfinite(largest) & (largest > 0.0), options.exact_scale ? ratio : power_below(ratio), 1.0);
    const Tensor scaled = x * where(isfinite(x), scale, 0.0);  // NaN of what is not finite
    return {cast(clamp(scaled, -largest_code, largest_code), options.dtype), scale};
}

const KernelCache quantize_kernel(kernel_id<kernels::Quantize>);

// The device's kernel, or null if there is none for x.
AnyKernel* kernel_of(const Tensor& x) {
    return x.dtype() == float64 || x.numel() == 0 ? nullptr : quantize_kernel.on(x.device().type());
}

// The kernel's results for x: codes in its shape, scales of the shape `groups`, and the others that `has`
// says. With `history`, of one element, the scale is for that, divided by 2^margin.
struct Has {
    bool matrix = true, transposed = false;
    Tensor history = {};
    double margin = 0;
};
Tensors run(AnyKernel* kernel, const Tensor& x, const QuantizeOptions& options, const Shape& groups,
            const Has& has) {
    const std::int64_t cols = x.dim() > 0 ? x.size(-1) : 1, rows = x.numel() / cols;
    const TensorOptions codes{.dtype = options.dtype, .device = x.device()}, scales{.device = x.device()};
    Tensors in{x.contiguous().reshape({rows, cols})};
    Tensors out{has.matrix ? empty({rows, cols}, codes) : Tensor(), empty(groups, scales),
                empty(groups, scales), has.transposed ? empty({cols, rows}, codes) : Tensor()};
    if (has.history.defined()) {
        in.push_back(has.history);
        out.push_back(empty(groups, scales));
    }
    const kernels::Quantize at{options.dtype, options.granularity, options.exact_scale,
                               float(std::exp2(-has.margin))};
    kernel(in, &at, out);
    if (has.matrix) out[0] = out[0].reshape(x.shape());
    return out;
}

// Whether the device's kernel writes the codes of the transposed matrix. Elsewhere they are a view.
bool writes_both(const Tensor& x) { return x.device().type() != DeviceType::cpu; }

Has has_of(const Tensor& x, Wanted wanted) {
    const bool both = writes_both(x);
    return {.matrix = !both || wanted != Wanted::transposed, .transposed = both && wanted != Wanted::matrix};
}

// The results of run() for a matrix with one scale.
QuantizedBoth as_wanted(const Tensors& made, Wanted wanted) {
    const Quantized matrix{made[0], made[1], made[2]};
    if (wanted == Wanted::matrix) return {matrix, {}};
    if (made[3].defined()) return {matrix, {made[3], made[1], made[2]}};
    return {matrix, transposed(matrix)};
}

// The shape of x with its last dimension in blocks.
Shape in_blocks(const Tensor& x) {
    Shape shape = x.shape();
    shape.back() /= fp8_block;
    shape.push_back(fp8_block);
    return shape;
}

void check_blocks(const Tensor& x, const QuantizeOptions& options) {
    check(!options.exact_scale, ErrorKind::value,
          "quantize: exact_scale is true with granularity block32; scales of blocks are powers of two");
    check(x.size(-1) % fp8_block == 0, ErrorKind::shape, "quantize: x has shape ", x.shape(),
          "; with granularity block32 its last dimension must be a multiple of 32");
}

// Blocks of a matrix and of the transposed one by the device's kernel.
QuantizedBoth run_blocks(AnyKernel* kernel, const Tensor& x, const QuantizeOptions& options, const Has& has) {
    Tensors out(6);
    const auto make = [&](std::size_t first, std::int64_t rows, std::int64_t cols) {
        const Shape groups{rows, cols / fp8_block};
        out[first] = empty({rows, cols}, {.dtype = options.dtype, .device = x.device()});
        out[first + 1] = empty(groups, {.device = x.device()});
        out[first + 2] = empty(groups, {.dtype = float8_e8m0fnu, .device = x.device()});
    };
    if (has.matrix) make(0, x.size(0), x.size(1));
    if (has.transposed) make(3, x.size(1), x.size(0));
    const Tensors in{x.contiguous()};
    const kernels::Quantize at{options.dtype, Granularity::block32};
    kernel(in, &at, out);
    return {{out[0], out[1], out[2]}, {out[3], out[4], out[5]}};
}

Quantized quantize_blocks(const Tensor& x, const QuantizeOptions& options) {
    check_blocks(x, options);
    if (AnyKernel* const kernel = kernel_of(x); kernel != nullptr && writes_both(x)) {
        const Quantized q = run_blocks(kernel, x.reshape({-1, x.size(-1)}), options, {}).matrix;
        Shape groups = x.shape();
        groups.back() /= fp8_block;
        return {q.codes.reshape(x.shape()), q.scale.reshape(groups), q.inverse.reshape(groups)};
    }
    const Quantized q =  // each block as a row
        quantize(x.reshape(in_blocks(x)), {.dtype = options.dtype, .granularity = Granularity::row});
    const Tensor scale = q.scale.squeeze(-1);
    return {q.codes.reshape(x.shape()), scale, cast(1.0 / scale, float8_e8m0fnu)};
}

// Checks that the scale is shaped as quantize() makes it.
void check_scale(const Quantized& q) {
    const Shape &codes = q.codes.shape(), &scale = q.scale.shape();
    const int dims = codes.size();
    bool fits = scale.size() == dims || (scale.numel() == 1 && !has_blocks(q));
    if (has_blocks(q)) {
        for (int d = 0; fits && d < dims; ++d)
            fits = d < dims - 1 ? scale[d] == codes[d] : scale[d] * fp8_block == codes[d];
        check(fits && dims > 0, ErrorKind::shape, "dequantize: the codes have shape ", codes,
              " and the scale ", scale,
              "; with an inverse in float8_e8m0fnu the scale must have one element for each 32 of the last "
              "dimension");
        return;
    }
    for (int d = 0; scale.numel() != 1 && fits && d < dims; ++d) fits = scale[d] == 1 || scale[d] == codes[d];
    check(fits, ErrorKind::shape, "dequantize: the codes have shape ", codes, " and the scale ", scale,
          "; each dimension of the scale must be 1 or that of the codes. Scales of 32 elements need their "
          "inverse in float8_e8m0fnu, and codes that are not transposed");
}

}  // namespace

Quantized quantize(const Tensor& x, const QuantizeOptions& options) {
    check_floating("quantize", x);
    check_dtype("quantize", options.dtype);
    check(options.dtype == float8_e4m3fn || options.dtype == float8_e5m2, ErrorKind::dtype,
          "quantize: dtype is ", options.dtype, "; it must be float8_e4m3fn or float8_e5m2");
    check_enumerator("quantize", "granularity", options.granularity, Granularity::block32);
    check(options.granularity == Granularity::tensor || x.dim() > 0, ErrorKind::shape,
          "quantize: a scale for each row of a tensor without dimensions");
    const NoGrad no_grad;
    const NoAutocast plain;
    if (options.granularity == Granularity::block32) return quantize_blocks(x, options);
    Shape groups = x.shape();
    for (int d = options.granularity == Granularity::row ? groups.size() - 1 : 0; d < groups.size(); ++d)
        groups[d] = 1;
    if (x.numel() == 0)
        return {empty(x.shape(), {.dtype = options.dtype, .device = x.device()}),
                ones(groups, {.device = x.device()})};
    if (AnyKernel* const kernel = kernel_of(x)) {
        const Tensors made = run(kernel, x, options, groups, {});
        return {made[0], made[1], made[2]};
    }
    const Tensor wide = cast(x, float32);
    return quantized_for(wide, largest_magnitude(wide, options.granularity), options);
}

QuantizedBoth quantize_both(const Tensor& x, const QuantizeOptions& options, Wanted wanted) {
    if (wanted == Wanted::matrix) return {quantize(x, options), {}};
    const bool one = options.granularity == Granularity::tensor,
               blocks = options.granularity == Granularity::block32;
    AnyKernel* const kernel = kernel_of(x);
    const NoGrad no_grad;
    const NoAutocast plain;
    if (blocks && kernel != nullptr && writes_both(x)) {
        check_blocks(x, options);
        check_blocks(x.t(), options);
        return run_blocks(kernel, x, options, has_of(x, wanted));
    }
    if (kernel == nullptr || !one) {
        const Quantized q = one || wanted == Wanted::both ? quantize(x, options) : Quantized();
        return {q, one ? transposed(q) : quantize(x.t(), options)};
    }
    return as_wanted(run(kernel, x, options, {1, 1}, has_of(x, wanted)), wanted);
}

Fp8Codes quantize_delayed(const Tensor& x, const Tensor& history, const QuantizeOptions& options,
                          double margin) {
    const NoGrad no_grad;
    const NoAutocast plain;
    if (AnyKernel* const kernel = kernel_of(x)) {
        Has has = has_of(x, Wanted::both);
        has.history = history;
        has.margin = margin;
        const Tensors made = run(kernel, x, options, {1, 1}, has);
        return {as_wanted(made, Wanted::both), made[4]};
    }
    const Tensor wide = cast(x, float32), own = largest_magnitude(wide, options.granularity);
    const Quantized q = quantized_for(wide, where(history > 0.0, history, own), options, margin);
    return {{q, transposed(q)}, own};
}

Tensor dequantize(const Quantized& q, Dtype dtype) {
    check(q.codes.defined() && q.scale.defined(), ErrorKind::value,
          "dequantize: codes or scale are undefined");
    check_scale(q);
    const NoGrad no_grad;
    const NoAutocast plain;
    const Tensor codes = cast(q.codes, float32);
    const Tensor x = has_blocks(q)
                         ? (codes.reshape(in_blocks(codes)) / q.scale.unsqueeze(-1)).reshape(codes.shape())
                         : codes / q.scale;
    // Codes may be rounded beyond the largest number of the dtype, and of float32.
    const double largest = std::min(dtype_info(dtype).max, dtype_info(float32).max);
    const Tensor limited = clamp(x, -largest, largest);
    return cast(q.codes.dtype() == float8_e5m2 ? where(isfinite(codes), limited, x) : limited, dtype);
}

}  // namespace mezzo
