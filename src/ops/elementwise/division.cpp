// Division with a rounding mode, and fmod.
#include <cmath>

#include "autograd/op_observer.h"
#include "core/enumerators.h"
#include "mezzo/pointwise_ops.h"
#include "ops/elementwise/formulas.h"

namespace mezzo {

namespace {

// a, and b as a 0-dim tensor for it: an integral a and a fraction are float32, a boolean a is int64.
struct Operands {
    Tensor a, b;
};
Operands beside(const char* op, const Tensor& a, Scalar b) {
    check_defined(op, a);
    const double real = b.to<double>();
    Dtype dtype = a.dtype();
    if (!is_floating(dtype)) {
        const bool whole = b.is_integer() || (std::isfinite(real) && real == std::floor(real));
        dtype = !whole ? float32 : dtype == boolean ? int64 : dtype;
        check_value(op, "the number", b, dtype);
        check(real != 0, ErrorKind::value, op,
              ": an integer cannot be divided by 0; convert it with to(float32) for infinity or NaN");
    }
    return {cast(a, dtype), scalar(b, {.dtype = dtype, .device = a.device()})};
}

// Integers: round((a - rest) / b) in float64, where quotients of int32 are exact. For int64 the rest of the
// division by this first quotient gives the correction. 0 where b is 0.
Tensor whole_quotient(const Tensor& a, const Tensor& b, RoundingMode rounding) {
    const Tensor zero = eq(b, 0), divisor = masked_fill(b, zero, 1);
    const Tensor rest = rounding == RoundingMode::floor ? remainder(a, divisor) : fmod(a, divisor);
    const Tensor over = doubled(divisor);
    Tensor q = cast(round((doubled(a) - doubled(rest)) / over), a.dtype());
    if (a.dtype() == int64) q = q + cast(round(doubled(a - rest - q * divisor) / over), int64);
    return masked_fill(q, zero, 0);
}

// Floating numbers: the quotient is rounded down after the exact remainder has been subtracted, as Python's
// // does, because a / b itself may have been rounded up to a whole number.
Tensor floor_quotient(const Tensor& a, const Tensor& b) {
    const Tensor rest = fmod(a, b), lower = logical_and(ne(rest, 0.0), ne(lt(rest, 0.0), lt(b, 0.0)));
    const Tensor q = round((a - rest) / b - cast(lower, a.dtype()));
    return where(eq(b, 0.0), a / b, q);
}

Tensor quotient(const char* op, const Tensor& given_a, const Tensor& given_b, RoundingMode rounding) {
    const CompositeOp here(op);
    const NoGrad plain;
    check_defined(op, given_a);
    check_defined(op, given_b);
    check_enumerator(op, "rounding", rounding, RoundingMode::floor);
    const Dtype dtype = promote_operands(given_a.dtype(), given_a.dim(), given_b.dtype(), given_b.dim());
    check(dtype != boolean, ErrorKind::dtype, op, ": no arithmetic on boolean; convert it with to()");
    const Tensor a = widened(cast(given_a, dtype)), b = widened(cast(given_b, dtype));
    const Shape shape = broadcast_shapes(op, a.shape(), b.shape());
    if (!is_floating(dtype)) return whole_quotient(a.expand(shape), b.expand(shape), rounding);
    return cast(rounding == RoundingMode::floor ? floor_quotient(a, b) : trunc(a / b), dtype);
}

}  // namespace

Tensor div(const Tensor& a, const Tensor& b, RoundingMode rounding) {
    return quotient("div", a, b, rounding);
}
Tensor div(const Tensor& a, Scalar b, RoundingMode rounding) {
    const auto [x, y] = beside("div", a, b);
    return quotient("div", x, y, rounding);
}
Tensor floor_divide(const Tensor& a, const Tensor& b) {
    return quotient("floor_divide", a, b, RoundingMode::floor);
}
Tensor floor_divide(const Tensor& a, Scalar b) {
    const auto [x, y] = beside("floor_divide", a, b);
    return quotient("floor_divide", x, y, RoundingMode::floor);
}

// remainder() of magnitudes, with the sign of a. The magnitude of the least integer does not exist, so that
// integers take the remainder with the sign of b and correct it.
Tensor fmod(const Tensor& a, const Tensor& b) {
    const CompositeOp here("fmod");
    check_defined("fmod", a);
    check_defined("fmod", b);
    if (is_floating(a.dtype()) || is_floating(b.dtype())) {
        check(a.dtype() != boolean && b.dtype() != boolean, ErrorKind::dtype,
              "fmod: no arithmetic on boolean; convert it with to()");
        return odd(a, [&](const Tensor& x) { return remainder(x, abs(b)); });
    }
    const Dtype dtype = promote_operands(a.dtype(), a.dim(), b.dtype(), b.dim());
    const Tensor x = cast(a, dtype), y = cast(b, dtype), r = remainder(x, y);
    return where(logical_and(ne(r, 0), ne(lt(x, 0), lt(y, 0))), r - y, r);
}
Tensor fmod(const Tensor& a, Scalar b) {
    const auto [x, y] = beside("fmod", a, b);
    return fmod(x, y);
}

}  // namespace mezzo
