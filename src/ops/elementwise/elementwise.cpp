// Op schemas and public functions of the element-wise ops in mezzo/ops.def.
#include "kernels/elementwise.h"
#include "autograd/op_observer.h"
#include "ops/common.h"
#include "ops/vjp_helpers.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mezzo {

namespace {

// Input i if the op saves its inputs; undefined otherwise, when the gradient does not read it.
Tensor kept(const Node& c, int i) { return c.op->traits().saves & save_inputs ? c.in(i) : Tensor(); }
Tensor kept_result(const Node& c) { return c.op->traits().saves & save_outputs ? c.out() : Tensor(); }

constexpr bool ints_same = false, ints_real = true;

// Ops that compute integers as integers (`same` in ops.def) refuse booleans: there is no arithmetic of them.
void check_arithmetic(const OpTraits& traits, const Tensor& x) {
    check_defined(traits.name, x);
    check(x.dtype() != boolean || traits.integers_to_real, ErrorKind::dtype, traits.name,
          ": no arithmetic on boolean; convert it with to(), or use where() or a logical function");
}

Tensor unary(const AnyOp& op, const Tensor& x, const AttributesRef& at) {
    check_arithmetic(op.traits(), x);
    return call_one(op, In(&x, 1), at, x.shape(), {});
}

// Whether a number is an integer, of whatever type.
bool is_whole(Scalar value) {
    const double real = value.to<double>();
    return value.is_integer() || (std::isfinite(real) && real == std::floor(real));
}

// Converts x for an op with a scalar: an integral x with a fractional or infinite scalar is computed in
// float32, a boolean x with a whole scalar in int64. Throws Error(value) for a whole scalar that the dtype
// does not hold. With uint8 a negative scalar is allowed if its absolute value is a uint8, because x + -1 is
// x - 1.
Tensor readable(const OpTraits& traits, const Tensor& x, Scalar alpha) {
    check_defined(traits.name, x);
    if (is_floating(x.dtype()) || traits.integers_to_real) return x;
    if (!is_whole(alpha)) return cast(x, float32);
    const Dtype dtype = x.dtype() == boolean ? int64 : x.dtype();
    const bool turned = dtype == uint8 && alpha.to<double>() < 0;
    check_value(traits.name, "the number", turned ? Scalar(-alpha.to<double>()) : alpha, dtype);
    return x.dtype() == boolean ? cast(x, int64) : x;
}

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);
// `exact` computes the same from x and a 0-dim tensor. Ops that convert integers to float32 need none.
template <class A>
Tensor with_scalar(const Op<A>& op, const Tensor& x, Scalar alpha, BinaryFunction exact = nullptr) {
    check_defined(op.name(), x);
    if (exceeds_double(alpha) && exact && !is_floating(x.dtype())) {
        const Tensor whole = readable(op.traits(), x, alpha);
        return exact(whole, scalar(alpha, {.dtype = whole.dtype(), .device = x.device()}));
    }
    return call(op, {readable(op.traits(), x, alpha)}, {.alpha = kernel_number(alpha, x.dtype())}, x.shape());
}

Shape common_shape(const char* op, const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() ? a.shape() : broadcast_shapes(op, a.shape(), b.shape());
}

Tensor binary(const AnyOp& op, const Tensor& a, const Tensor& b, const AttributesRef& at) {
    const OpTraits& traits = op.traits();
    check_defined(traits.name, a);
    check_defined(traits.name, b);
    std::optional<Dtype> dtype;
    if (traits.result == ResultDtype::promoted) {
        if (a.dtype() == boolean && b.dtype() == boolean) check_arithmetic(traits, a);
        const Dtype da = autocast_dtype(traits.cast, a), db = autocast_dtype(traits.cast, b);
        if (da != db) {
            dtype = promote_operands(da, a.dim(), db, b.dim());
            if (traits.integers_to_real && !is_floating(*dtype)) dtype = float32;
        }
    }
    const Tensor given[] = {a, b};
    return call_one(op, given, at, common_shape(traits.name, a, b), dtype);
}

#define MEZZO_TRAITS(op, policy, ints, saved, dtype)                                                  \
    OpTraits {                                                                                        \
        .name = #op, .cast = CastPolicy::policy, .saves = save_##saved, .result = ResultDtype::dtype, \
        .integers_to_real = ints_##ints, .strided = true, .mixed = true                               \
    }
#define MEZZO_UNARY(op, policy, ints, saved, gradient)                                          \
    const Op<kernels::op> op##_op{MEZZO_TRAITS(op, policy, ints, saved, first),                 \
                                  [](const Node& c, const Tensors& gs) -> Tensors {             \
                                      [[maybe_unused]] const Tensor &g = gs[0], x = kept(c, 0); \
                                      [[maybe_unused]] const Tensor y = kept_result(c);         \
                                      return {gradient};                                        \
                                  }};
#define MEZZO_UNARY_SCALAR(op, policy, ints, saved, gradient)                                              \
    const Op<kernels::op> op##_op{MEZZO_TRAITS(op, policy, ints, saved, first),                            \
                                  [](const Node& c, const kernels::op& at, const Tensors& gs) -> Tensors { \
                                      [[maybe_unused]] const Tensor &g = gs[0], x = kept(c, 0);            \
                                      [[maybe_unused]] const double alpha = at.alpha, beta = at.beta;      \
                                      return {gradient};                                                   \
                                  }};
#define MEZZO_BINARY(op, policy, ints, saved, gradient_a, gradient_b)                                        \
    const Op<kernels::op> op##_op{                                                                           \
        MEZZO_TRAITS(op, policy, ints, saved, promoted), [](const Node& c, const Tensors& gs) -> Tensors {   \
            [[maybe_unused]] const Tensor &g = gs[0], a = kept(c, 0), b = kept(c, 1);                        \
            return {c.needs(0) ? Tensor(gradient_a) : Tensor(), c.needs(1) ? Tensor(gradient_b) : Tensor()}; \
        }};
#define MEZZO_COMPARE(op)                                        \
    const Op<kernels::op> op##_op{{.name = #op,                  \
                                   .saves = save_none,           \
                                   .result = ResultDtype::flags, \
                                   .strided = true,              \
                                   .mixed = true,                \
                                   .differentiable = false}};
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#undef MEZZO_COMPARE
#undef MEZZO_TRAITS

// b as a 0-dim tensor to compare a with: in a's dtype, or in float64 if b is out of its range. For an
// integral a in int64 if b is a whole number, otherwise in float64, so that the comparison is exact: a number
// beyond int64 is an infinity there, because the largest int64 numbers round up to 2^63.
Tensor comparable(const Tensor& a, Scalar b) {
    Dtype dtype = a.dtype();
    const double real = b.to<double>();
    if (is_floating(dtype)) {
        if (std::isfinite(real) && std::abs(real) > dtype_info(dtype).max) dtype = float64;
    } else if (is_whole(b) && (b.is_integer() || (real >= -0x1p63 && real < 0x1p63))) {
        dtype = int64;
        b = b.to<std::int64_t>();
    } else {
        dtype = float64;
        if (std::abs(real) >= 0x1p63) b = std::copysign(INFINITY, real);
    }
    return scalar(b, {.dtype = dtype, .device = a.device()});
}

}  // namespace

#define MEZZO_UNARY(op, policy, ints, saved, gradient) \
    Tensor op(const Tensor& x) { return unary(op##_op, x, kernels::op()); }
#define MEZZO_UNARY_SCALAR(op, policy, ints, saved, gradient)
#define MEZZO_BINARY(op, policy, ints, saved, gradient_a, gradient_b) \
    Tensor op(const Tensor& a, const Tensor& b) { return binary(op##_op, a, b, kernels::op()); }
#define MEZZO_COMPARE(op) \
    Tensor op(const Tensor& a, const Tensor& b) { return binary(op##_op, a, b, kernels::op()); }
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#undef MEZZO_COMPARE

Tensor pow(const Tensor& x, double exponent) { return with_scalar(pow_scalar_op, x, exponent); }

namespace {

// The integer next to a bound that lies inside of [low, high], or the last of int64 before it.
std::int64_t whole_bound(Scalar bound, double (*inside)(double)) {
    using Limits = std::numeric_limits<std::int64_t>;
    if (bound.is_integer()) return bound.to<std::int64_t>();
    const double whole = inside(bound.to<double>());
    return whole >= 0x1p63   ? Limits::max()
           : whole < -0x1p63 ? Limits::min()
                             : static_cast<std::int64_t>(whole);
}

// x limited to [low, high]. The bounds of integers are the integers next to them inside of [low, high].
template <class A> Tensor limited(const Op<A>& op, const Tensor& x, Scalar low, Scalar high) {
    const char* name = op.name();
    check(low.to<double>() <= high.to<double>(), ErrorKind::value, name, ": low ", item(low),
          " is not <= high ", item(high));
    check_defined(name, x);
    if (!is_floating(x.dtype())) {
        const std::int64_t least = whole_bound(low, std::ceil), most = whole_bound(high, std::floor);
        check(least <= most, ErrorKind::value, name, ": no integer lies between low ", item(low),
              " and high ", item(high), "; convert the input with to(float32)");
        if (!low.is_integer()) low = std::ceil(low.to<double>());
        if (!high.is_integer()) high = std::floor(high.to<double>());
        if (least > 0) check_value(name, "low", low, x.dtype());  // smaller elements would become it
        if (most < 0) check_value(name, "high", high, x.dtype());
        if (x.dtype() == int64 && (exceeds_double(low) || exceeds_double(high))) {
            const TensorOptions options{.dtype = int64, .device = x.device()};
            return minimum(maximum(x, scalar(least, options)), scalar(most, options));
        }
        return unary(op, x, A{.alpha = low.to<double>(), .beta = high.to<double>()});
    }
    return unary(op, x, A{.alpha = kernel_number(low, x.dtype()), .beta = kernel_number(high, x.dtype())});
}

}  // namespace

Tensor clamp(const Tensor& x, Scalar low, Scalar high) { return limited(clamp_op, x, low, high); }
Tensor hardtanh(const Tensor& x, Scalar low, Scalar high) { return limited(hardtanh_op, x, low, high); }
Tensor elu(const Tensor& x, double alpha) { return unary(elu_op, x, kernels::elu{.alpha = alpha}); }
Tensor leaky_relu(const Tensor& x, double negative_slope) {
    return unary(leaky_relu_op, x, kernels::leaky_relu{.alpha = negative_slope});
}

Tensor remainder(const Tensor& a, Scalar b) {
    const Tensor x = readable(remainder_op.traits(), a, b);
    check(is_floating(x.dtype()) || b.to<double>() != 0, ErrorKind::value,
          "remainder: an integer has no remainder of a division by 0; convert it with to(float32) for NaN");
    return remainder(x, scalar(b, {.dtype = x.dtype(), .device = x.device()}));
}

Tensor eq(const Tensor& a, Scalar b) { return eq(a, comparable(a, b)); }
Tensor ne(const Tensor& a, Scalar b) { return ne(a, comparable(a, b)); }
Tensor lt(const Tensor& a, Scalar b) { return lt(a, comparable(a, b)); }
Tensor le(const Tensor& a, Scalar b) { return le(a, comparable(a, b)); }
Tensor gt(const Tensor& a, Scalar b) { return gt(a, comparable(a, b)); }
Tensor ge(const Tensor& a, Scalar b) { return ge(a, comparable(a, b)); }

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
Tensor operator+(const Tensor& a, Scalar b) { return with_scalar(add_scalar_op, a, b, add); }
Tensor operator-(const Tensor& a, Scalar b) {
    check_defined("sub", a);
    const double number = kernel_number(b, a.dtype());
    // Integers whose negative the dtype or a double does not hold.
    if (!is_floating(a.dtype()) && (exceeds_double(b) || number == -0x1p63 || number == -0x1p31)) {
        const Tensor x = readable(add_scalar_op.traits(), a, b);
        return sub(x, scalar(b, {.dtype = x.dtype(), .device = x.device()}));
    }
    const CompositeOp here("sub");
    return with_scalar(add_scalar_op, a, -number);
}
Tensor operator*(const Tensor& a, Scalar b) { return with_scalar(mul_scalar_op, a, b, mul); }
Tensor operator/(const Tensor& a, double b) { return with_scalar(div_scalar_op, a, b); }
Tensor operator+(Scalar a, const Tensor& b) { return b + a; }
Tensor operator-(Scalar a, const Tensor& b) {
    return with_scalar(rsub_scalar_op, b, a,
                       [](const Tensor& x, const Tensor& number) { return sub(number, x); });
}
Tensor operator*(Scalar a, const Tensor& b) { return b * a; }
Tensor operator/(double a, const Tensor& b) { return with_scalar(rdiv_scalar_op, b, a); }
Tensor operator-(const Tensor& x) { return neg(x); }

}  // namespace mezzo
