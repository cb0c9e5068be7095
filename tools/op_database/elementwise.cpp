// Element-wise functions, comparisons and arithmetic.
#include <cmath>
#include <numbers>

#include "tools/op_database/call.h"

namespace database {

namespace {

// A function of two tensors, or of a tensor and a number on either side.
template <class F> Tensors either(const Call& c, F&& function, std::size_t first = 0) {
    const bool a = c.is_tensor("input", first), b = c.is_tensor("other", first + 1);
    if (a && b) return {function(c.x(first), c.tensor("other", first + 1))};
    if (a) return {function(c.x(first), c.scalar("other", first + 1, 0))};
    return {function(c.scalar("input", first, 0), c.tensor("other", first + 1))};
}

Tensor as_tensor(const Tensor& x) { return x; }
Tensor as_tensor(mz::Scalar x) { return mz::scalar(x, {.dtype = x.is_integer() ? mz::int64 : mz::float32}); }

// x + alpha * y
Tensors add(const Call& c, double sign) {
    const double alpha = sign * c.number("alpha", 99, 1);
    const mz::Scalar factor =
        alpha == std::floor(alpha) ? mz::Scalar(std::int64_t(alpha)) : mz::Scalar(alpha);
    return either(c, [&](const auto& a, const auto& b) { return a + as_tensor(b) * factor; });
}

// `clamp` and its halves: tensors or numbers, each of which may be missing.
Tensors clamp(const Call& c, const std::string& low, std::size_t low_at, const std::string& high,
              std::size_t high_at) {
    const double infinity = std::numeric_limits<double>::infinity();
    if (!c.is_tensor(low, low_at) && !c.is_tensor(high, high_at))
        return {mz::clamp(c.x(), c.scalar(low, low_at, -infinity), c.scalar(high, high_at, infinity))};
    Tensor y = c.x();
    if (c.has(low, low_at)) y = mz::maximum(y, c.tensor(low, low_at));
    if (c.has(high, high_at)) y = mz::minimum(y, c.tensor(high, high_at));
    return {y};
}

Table of_schema() {
    Table table;
#define MEZZO_UNARY(name, ...) table[#name] = [](const Call& c) -> Tensors { return {mz::name(c.x())}; };
#define MEZZO_BINARY(name, ...) \
    table[#name] = [](const Call& c) -> Tensors { return {mz::name(c.x(), c.tensor("other", 1))}; };
#define MEZZO_COMPARE(name)                                                                                  \
    table[#name] = [](const Call& c) -> Tensors {                                                            \
        return either(c, [](const auto& a, const auto& b) { return mz::name(as_tensor(a), as_tensor(b)); }); \
    };
#include <mezzo/ops.def>
#define UNARY(name) table[#name] = [](const Call& c) -> Tensors { return {mz::name(c.x())}; }
    UNARY(exp2);
    UNARY(log2);
    UNARY(log10);
    UNARY(tan);
    UNARY(asin);
    UNARY(acos);
    UNARY(atan);
    UNARY(sinh);
    UNARY(cosh);
    UNARY(asinh);
    UNARY(acosh);
    UNARY(atanh);
    UNARY(erfc);
    UNARY(erfinv);
    UNARY(lgamma);
    UNARY(digamma);
    UNARY(selu);
    UNARY(relu6);
    UNARY(hardsigmoid);
    UNARY(hardswish);
    UNARY(logsigmoid);
    UNARY(isfinite);
    UNARY(isnan);
    UNARY(isinf);
    UNARY(logical_not);
#undef UNARY
    return table;
}

// Quotients, which have a mode of rounding.
Tensors quotient(const Call& c) {
    const std::string mode = c.text("rounding_mode", 99, "");
    if (mode.empty()) return {c.is_tensor("other", 1) ? c.x() / c.x(1) : c.x() / c.number("other", 1, 1)};
    const auto rounding = mode == "floor" ? mz::RoundingMode::floor : mz::RoundingMode::trunc;
    return {c.is_tensor("other", 1) ? mz::div(c.x(), c.x(1), rounding)
                                    : mz::div(c.x(), c.scalar("other", 1, 1), rounding)};
}

// Channels are dimension 1 in PyTorch.
Tensor prelu_of(const Tensor& x, const Tensor& weight) {
    if (x.dim() < 2) return mz::prelu(x, weight);
    return mz::prelu(x.transpose(1, -1), weight).transpose(1, -1);
}

Table arithmetic() {
    return {
        {"add", [](const Call& c) { return add(c, 1); }},
        {"__radd__", [](const Call& c) { return add(c, 1); }},
        {"sub", [](const Call& c) { return add(c, -1); }},
        OP("rsub", {c.is_tensor("other", 1) ? c.tensor("other", 1) - c.x() * c.scalar("alpha", 99, 1)
                                            : c.scalar("other", 1, 0) - c.x() * c.scalar("alpha", 99, 1)}),
        OP("__rsub__", either(c, [](const auto& a, const auto& b) { return b - a; })),
        OP("mul", either(c, [](const auto& a, const auto& b) { return a * b; })),
        OP("__rmul__", either(c, [](const auto& a, const auto& b) { return b * a; })),
        {"true_divide", quotient},
        {"div", quotient},
        OP("floor_divide", {c.is_tensor("other", 1) ? mz::floor_divide(c.x(), c.x(1))
                                                    : mz::floor_divide(c.x(), c.scalar("other", 1, 1))}),
        OP("fmod",
           {c.is_tensor("other", 1) ? mz::fmod(c.x(), c.x(1)) : mz::fmod(c.x(), c.scalar("other", 1, 1))}),
        OP("logaddexp", {mz::logaddexp(c.x(), c.x(1))}),
        OP("logaddexp2",
           {mz::logaddexp(c.x() * std::numbers::ln2, c.x(1) * std::numbers::ln2) / std::numbers::ln2}),
        OP("hypot", {mz::hypot(c.x(), c.x(1))}),
        OP("xlogy",
           either(c, [](const auto& a, const auto& b) { return mz::xlogy(as_tensor(a), as_tensor(b)); })),
        OP("equal", {mz::scalar(mz::equal(c.x(), c.x(1)), {.dtype = mz::boolean})}),
        OP("__rdiv__", {c.number("other", 1, 1) / c.x()}),
        OP("pow", {c.is_tensor("exponent", 1)
                       ? mz::pow(c.is_tensor("input", 0) ? c.x() : as_tensor(c.scalar("input", 0, 1)),
                                 c.tensor("exponent", 1))
                       : mz::pow(c.x(), c.number("exponent", 1, 1))}),
        OP("__rpow__", {mz::pow(as_tensor(c.scalar("other", 1, 1)), c.x())}),
        OP("float_power", {c.is_tensor("exponent", 1)
                               ? mz::pow(c.x().to(mz::float64), c.tensor("exponent", 1).to(mz::float64))
                               : mz::pow(c.x().to(mz::float64), c.number("exponent", 1, 1))}),
        OP("remainder",
           either(c, [](const auto& a, const auto& b) { return mz::remainder(as_tensor(a), b); })),
        OP("__rmod__", {mz::remainder(as_tensor(c.scalar("other", 1, 1)), c.x())}),
        OP("clamp", clamp(c, "min", 1, "max", 2)),
        OP("clamp_min", clamp(c, "min", 1, "", 99)),
        OP("clamp_max", clamp(c, "", 99, "max", 1)),
        OP("lerp",
           {c.is_tensor("weight", 2) ? mz::lerp(c.x(), c.tensor("end", 1), c.tensor("weight", 2))
                                     : mz::lerp(c.x(), c.tensor("end", 1), c.number("weight", 2, 0))}),
        OP("addcmul", {mz::addcmul(c.x(), c.x(1), c.x(2), c.number("value", 3, 1))}),
        OP("addcdiv", {mz::addcdiv(c.x(), c.x(1), c.x(2), c.number("value", 3, 1))}),
        OP("where", {c.is_tensor("other", 2) ? mz::where(c.x(1), c.x(), c.x(2))
                                             : mz::where(c.x(1), c.x(), c.scalar("other", 2, 0))}),
        OP("fmax", {mz::where(mz::isnan(c.x()) | (c.x(1) > c.x()), c.x(1), c.x())}),
        OP("fmin", {mz::where(mz::isnan(c.x()) | (c.x(1) < c.x()), c.x(1), c.x())}),
        OP("isclose", {mz::isclose(c.x(), c.x(1),
                                   {.rtol = c.number("rtol", 2, 1e-5),
                                    .atol = c.number("atol", 3, 1e-8),
                                    .equal_nan = c.flag("equal_nan", 4)})}),
        OP("allclose",
           {mz::scalar(mz::all_close(c.x(), c.x(1), c.number("rtol", 2, 1e-5), c.number("atol", 3, 1e-8)),
                       {.dtype = mz::boolean})}),
        OP("logical_xor", {mz::logical_xor(c.x(), c.x(1))}),
        OP("masked_fill",
           {c.is_tensor("value", 2) ? mz::where(c.x(1), c.tensor("value", 2).to(c.x().dtype()), c.x())
                                    : mz::masked_fill(c.x(), c.x(1), c.scalar("value", 2, 0))}),
    };
}

mz::NanToNumOptions nan_options(const Call& c) {
    mz::NanToNumOptions options{.nan = c.number("nan", 1, 0)};
    if (c.has("posinf", 2)) options.posinf = c.number("posinf", 2, 0);
    if (c.has("neginf", 3)) options.neginf = c.number("neginf", 3, 0);
    return options;
}

// One expression each.
Table expressions() {
    return {
        OP("positive", {c.x()}),
        OP("deg2rad", {c.x() * (std::numbers::pi / 180)}),
        OP("rad2deg", {c.x() * (180 / std::numbers::pi)}),
        OP("frac", {c.x() - mz::trunc(c.x())}),
        OP("sgn", {mz::sign(c.x())}),
        OP("sinc",
           {mz::where(c.x() == 0, 1.0, mz::sin(c.x() * std::numbers::pi) / (c.x() * std::numbers::pi))}),
        OP("isposinf", {mz::isinf(c.x()) & (c.x() > 0)}),
        OP("isneginf", {mz::isinf(c.x()) & (c.x() < 0)}),
        {"logit",
         [](const Call& c) -> Tensors {
             const double eps = c.number("eps", 1, -1);
             const Tensor x = c.x().to(mz::is_floating(c.x().dtype()) ? c.x().dtype() : mz::float32);
             if (eps > 0.5) throw NotHere("eps above a half");
             const Tensor p = eps < 0 ? x : mz::clamp(x, eps, 1 - eps);
             return {mz::log(p / (1.0 - p))};
         }},
        OP("heaviside", {mz::where(c.x() == 0, c.x(1), (c.x() > 0).to(c.x().dtype()))}),
        OP("copysign", either(c,
                              [](const auto& a, const auto& b) {
                                  const Tensor value = mz::abs(as_tensor(a));
                                  return mz::where(as_tensor(b) < 0, -value, value);
                              })),
        OP("round", {c.has("decimals", 1) ? mz::round(c.x() * std::pow(10, c.number("decimals", 1, 0))) /
                                                std::pow(10, c.number("decimals", 1, 0))
                                          : mz::round(c.x())}),
        OP("gelu", {c.text("approximate", 1, "none") == "tanh" ? mz::gelu_tanh(c.x()) : mz::gelu(c.x())}),
        OP("elu", {mz::elu(c.x(), c.number("alpha", 1, 1))}),
        OP("celu", {mz::celu(c.x(), c.number("alpha", 1, 1))}),
        OP("hardshrink", {mz::hardshrink(c.x(), c.number("lambd", 1, 0.5))}),
        OP("prelu", {prelu_of(c.x(), c.x(1))}),
        OP("nan_to_num", {mz::nan_to_num(c.x(), nan_options(c))}),
        OP("signbit", {c.x() < 0}),
        OP("leaky_relu", {mz::leaky_relu(c.x(), c.number("negative_slope", 1, 0.01))}),
        OP("hardtanh", {mz::hardtanh(c.x(), c.scalar("min_val", 1, -1), c.scalar("max_val", 2, 1))}),
        OP("softplus",
           {c.number("beta", 1, 1) == 1 && c.number("threshold", 2, 20) == 20
                ? mz::softplus(c.x())
                : mz::where(c.x() * c.number("beta", 1, 1) > c.number("threshold", 2, 20), c.x(),
                            mz::softplus(c.x() * c.number("beta", 1, 1)) / c.number("beta", 1, 1))}),
        OP("tanhshrink", {c.x() - mz::tanh(c.x())}),
        OP("threshold", {mz::threshold(c.x(), c.number("threshold", 1, 0), c.number("value", 2, 0))}),
        OP("softshrink", {mz::softshrink(c.x(), c.number("lambd", 1, 0.5))}),
        OP("glu", {mz::glu(c.x(), c.integer("dim", 1, -1))}),
        {"dropout",
         [](const Call& c) -> Tensors {
             const double p = c.number("p", 1, 0.5);
             const bool training = c.flag("training", 2, true);
             if (training && p > 0 && p < 1) throw NotHere("random");
             return {mz::dropout(c.x(), p, training)};
         }},
    };
}

}  // namespace

Table elementwise() {
    Table table = of_schema();
    for (const Table& more : {arithmetic(), expressions()})
        for (const auto& [name, run] : more) table[name] = run;
    return table;
}

}  // namespace database
