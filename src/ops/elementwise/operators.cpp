// Comparisons, logic and compound assignments as operators; those of arithmetic are in elementwise.cpp.
#include <cmath>

#include "ops/common.h"

namespace mezzo {

namespace {

// A condition or an operand of & and |.
const Tensor& flags(const char* op, const Tensor& x) {
    check_defined(op, x);
    check(x.dtype() == boolean, ErrorKind::dtype, op, ": ", x.dtype(),
          " is not boolean; logical_and() and logical_or() take any dtype");
    return x;
}

}  // namespace

// a < b as lt(a, b), and the function for the operands the other way round.
#define MEZZO_COMPARISON(op, function, turned)                                      \
    Tensor operator op(const Tensor& a, const Tensor& b) { return function(a, b); } \
    Tensor operator op(const Tensor& a, Scalar b) { return function(a, b); }        \
    Tensor operator op(Scalar a, const Tensor& b) { return turned(b, a); }
MEZZO_COMPARISON(==, eq, eq)
MEZZO_COMPARISON(!=, ne, ne)
MEZZO_COMPARISON(<, lt, gt)
MEZZO_COMPARISON(<=, le, ge)
MEZZO_COMPARISON(>, gt, lt)
MEZZO_COMPARISON(>=, ge, le)
#undef MEZZO_COMPARISON

Tensor operator!(const Tensor& x) { return logical_not(x); }
Tensor operator&(const Tensor& a, const Tensor& b) { return logical_and(flags("&", a), flags("&", b)); }
Tensor operator|(const Tensor& a, const Tensor& b) { return logical_or(flags("|", a), flags("|", b)); }

#define MEZZO_COMPOUND(op, Number)                                                          \
    Tensor& Tensor::operator op##=(const Tensor& other)& { return *this = *this op other; } \
    Tensor& Tensor::operator op##=(Number other)& { return *this = *this op other; }
MEZZO_COMPOUND(+, Scalar)
MEZZO_COMPOUND(-, Scalar)
MEZZO_COMPOUND(*, Scalar)
MEZZO_COMPOUND(/, double)
#undef MEZZO_COMPOUND

namespace {

// A number as an operand of where() next to x: of x's dtype if that can hold it, as in a + b.
Tensor beside(const Tensor& x, Scalar value) {
    check_defined("where", x);
    const double real = value.to<double>();
    const bool whole = value.is_integer() || (real == std::floor(real) && std::isfinite(real));
    Dtype dtype = x.dtype();
    if (!is_floating(dtype)) dtype = !whole ? float32 : dtype == boolean ? int64 : dtype;
    return scalar(value, {.dtype = dtype, .device = x.device()});
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, Scalar b) { return where(condition, a, beside(a, b)); }
Tensor where(const Tensor& condition, Scalar a, const Tensor& b) { return where(condition, beside(b, a), b); }
Tensor where(const Tensor& condition, Scalar a, Scalar b) {
    check_defined("where", condition);
    const TensorOptions options{.device = condition.device()};
    return where(condition, scalar(a, options), scalar(b, options));
}

}  // namespace mezzo
