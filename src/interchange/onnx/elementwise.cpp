// Mappings of element-wise ops (include/mezzo/ops.def, and those with conditions).
#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>

#include "interchange/onnx/mapping.h"
#include "mezzo/ops.h"

namespace mezzo::onnx {

namespace {

template <class F> Value unary(const Call& call, const F& f) {
    return elementwise(call.graph, call.in[0], f);
}

// Maps ops that a single operator computes.
template <const char* type> Value one(const Call& call) {
    return unary(call, [&](Value x) { return call.graph.like(type, {x}); });
}
#define MEZZO_ONE(op, type)            \
    constexpr char op##_type[] = type; \
    constexpr MappingOf op##_entry { #op, one < op##_type> }

MEZZO_ONE(abs, "Abs");
MEZZO_ONE(sign, "Sign");
MEZZO_ONE(exp, "Exp");
MEZZO_ONE(log, "Log");
MEZZO_ONE(sqrt, "Sqrt");
MEZZO_ONE(reciprocal, "Reciprocal");
MEZZO_ONE(sin, "Sin");
MEZZO_ONE(cos, "Cos");
MEZZO_ONE(erf, "Erf");
MEZZO_ONE(tanh, "Tanh");
MEZZO_ONE(sigmoid, "Sigmoid");
MEZZO_ONE(softplus, "Softplus");
MEZZO_ONE(softsign, "Softsign");
#undef MEZZO_ONE

// The operators below take only real numbers, or fewer integer dtypes than the ops.
constexpr char floor_type[] = "Floor", ceil_type[] = "Ceil", round_type[] = "Round";
template <const char* type> Value rounded(const Call& call) {
    return is_floating(call.dtype()) ? one<type>(call) : call.in[0];
}
Value neg(const Call& call) {
    return unary(call, [&](Value x) {
        if (call.dtype() != uint8) return call.graph.like("Neg", {x});
        return call.graph.node("Sub", {call.number(0), x}, call.graph.shape(x), uint8);
    });
}
Value relu(const Call& call) {
    if (call.dtype() == uint8) return call.in[0];
    return unary(call, [&](Value x) {
        if (is_floating(call.dtype())) return call.graph.like("Relu", {x});
        return call.graph.like("Max", {x, call.number(0)});
    });
}

Value square(const Call& call) {
    return unary(call, [&](Value x) { return call.graph.like("Mul", {x, x}); });
}
Value rsqrt(const Call& call) {
    return unary(call,
                 [&](Value x) { return call.graph.like("Reciprocal", {call.graph.like("Sqrt", {x})}); });
}
Value expm1(const Call& call) {
    return unary(call, [&](Value x) {
        return call.graph.like("Sub", {call.graph.like("Exp", {x}), call.number(1)});
    });
}
Value log1p(const Call& call) {
    return unary(call, [&](Value x) {
        return call.graph.like("Log", {call.graph.like("Add", {x, call.number(1)})});
    });
}
Value trunc(const Call& call) {
    if (!is_floating(call.dtype())) return call.in[0];
    return unary(call, [&](Value x) {
        Graph& g = call.graph;
        return g.like("Mul", {g.like("Sign", {x}), g.like("Floor", {g.like("Abs", {x})})});
    });
}
Value silu(const Call& call) {
    return unary(call, [&](Value x) { return call.graph.like("Mul", {x, call.graph.like("Sigmoid", {x})}); });
}
Value mish(const Call& call) {
    return unary(call, [&](Value x) {
        Graph& g = call.graph;
        return g.like("Mul", {x, g.like("Tanh", {g.like("Softplus", {x})})});
    });
}
Value gelu_op(const Call& call) {
    return unary(call, [&](Value x) { return gelu(call.graph, x); });
}
Value gelu_tanh_op(const Call& call) {
    return unary(call, [&](Value x) { return gelu_tanh(call.graph, x); });
}

// All attribute structs of ops with scalars have the same members; A is the op's.
template <class A, const char* type> Value with_scalar(const Call& call) {
    const double alpha = call.attributes<A>().alpha;
    return unary(call, [&](Value x) { return call.graph.like(type, {x, call.number(alpha)}); });
}
template <class A, const char* type> Value scalar_with(const Call& call) {
    const double alpha = call.attributes<A>().alpha;
    return unary(call, [&](Value x) {
        const Value scalar = call.number(alpha);
        return call.graph.node(type, {scalar, x}, call.graph.shape(x), call.dtype());
    });
}
constexpr char add_type[] = "Add", sub_type[] = "Sub", mul_type[] = "Mul", div_type[] = "Div",
               mod_type[] = "Mod", pow_type[] = "Pow", max_type[] = "Max", min_type[] = "Min",
               elu_type[] = "Elu", leaky_type[] = "LeakyRelu";

template <class A, const char* type> Value with_slope(const Call& call) {
    const float alpha = float(call.attributes<A>().alpha);
    return unary(call, [&](Value x) { return call.graph.like(type, {x}, {{"alpha", alpha}}); });
}
// uint8 is computed in a wider type, and bounds outside its range are clamped to the range.
template <class A> Value clip(const Call& call) {
    const A& at = call.attributes<A>();
    const auto bound = [&](double value) {
        return call.number(call.dtype() == uint8 ? std::clamp(value, 0.0, 255.0) : value);
    };
    return unary(call, [&](Value x) {
        return call.graph.like("Clip", {x, bound(at.alpha), bound(at.beta)});
    });
}

// Returns the inputs of an operator that broadcasts, without expansions that it makes itself.
Values unexpanded(const Call& call, Values inputs) {
    for (Value& x : inputs) {
        const Entry& entry = call.graph[x];
        if (entry.kind != ValueKind::node || entry.name != "Expand") continue;
        Shape all = call.graph.shape(entry.inputs[0]);
        for (const Value& other : inputs)
            if (&other != &x) all = broadcast_shapes("export_onnx", all, call.graph.shape(other));
        if (all == call.shape()) x = entry.inputs[0];
    }
    return inputs;
}

// Adds an operator of two inputs, converted to `dtype`. If both are the same permutation of images, the
// operator is applied to the images.
Value of_two(const Call& call, const char* type, Dtype dtype, const Attributes& attributes = {}) {
    Graph& g = call.graph;
    const Value a = g.converted(call.in[0], dtype), b = g.converted(call.in[1], dtype);
    const auto left = g.permutation(a), right = g.permutation(b);
    if (left && right && left->axes == right->axes && g.shape(a) == g.shape(b))
        return g.permuted(g.node(type, {left->of, right->of}, g.shape(left->of), call.dtype(), attributes),
                          left->axes);
    return call.emit(type, unexpanded(call, {a, b}), attributes);
}
template <const char* type> Value binary(const Call& call) { return of_two(call, type, call.dtype()); }

// For integers Mod has the sign of the divisor. For floats it is C's fmod(), to which the divisor is added if
// the signs differ.
Value remainder(const Call& call) {
    if (!is_floating(call.dtype())) return binary<mod_type>(call);
    Graph& g = call.graph;
    const Value r = of_two(call, mod_type, call.dtype(), {{"fmod", std::int64_t(1)}});
    const Value b = g.converted(call.in[1], call.dtype()), zero = call.number(0);
    const auto flags = [&](const char* type, const Values& of) {
        return g.node(type, of, call.shape(), boolean);
    };
    const Value differ = flags("Xor", {flags("Less", {r, zero}), flags("Less", {b, zero})});
    const Value wrong = flags("And", {differ, flags("Not", {flags("Equal", {r, zero})})});
    return call.emit("Where", {wrong, call.emit("Add", {r, b}), r});
}
constexpr char equal_type[] = "Equal", less_type[] = "Less", less_equal_type[] = "LessOrEqual",
               greater_type[] = "Greater", greater_equal_type[] = "GreaterOrEqual", and_type[] = "And",
               or_type[] = "Or";
// Only Equal accepts booleans.
template <const char* type> Value compare(const Call& call) {
    const Dtype dtype = promote(call.graph.dtype(call.in[0]), call.graph.dtype(call.in[1]));
    return of_two(call, type, dtype == boolean && type != equal_type ? int32 : dtype);
}
Value not_equal(const Call& call) { return call.graph.like("Not", {compare<equal_type>(call)}); }
template <const char* type> Value logical(const Call& call) { return of_two(call, type, boolean); }
Value logical_not(const Call& call) { return call.emit("Not", {call.graph.converted(call.in[0], boolean)}); }
Value is_finite(const Call& call) {
    const Value x = call.in[0];
    if (!is_floating(call.graph.dtype(x))) return call.emit("Equal", {x, x});  // true
    return call.emit("Not", {call.emit("Or", {call.emit("IsInf", {x}), call.emit("IsNaN", {x})})});
}

// onnxruntime's Where does not accept booleans.
Value chosen(const Call& call, Value condition, Value a, Value b) {
    Graph& g = call.graph;
    const Dtype dtype = call.dtype() == boolean ? uint8 : call.dtype();
    const Values inputs = unexpanded(call, {condition, g.converted(a, dtype), g.converted(b, dtype)});
    return g.converted(g.node("Where", inputs, call.shape(), dtype), call.dtype());
}
Value where(const Call& call) { return chosen(call, call.in[0], call.in[1], call.in[2]); }
Value masked_fill(const Call& call) {
    const double value = call.attributes<kernels::MaskedFill>().value;
    return chosen(call, call.in[1], call.number(value), call.in[0]);
}

constexpr MappingOf mappings[] = {
    abs_entry,
    sign_entry,
    exp_entry,
    log_entry,
    sqrt_entry,
    reciprocal_entry,
    sin_entry,
    cos_entry,
    erf_entry,
    tanh_entry,
    sigmoid_entry,
    softplus_entry,
    softsign_entry,
    {"neg", neg},
    {"relu", relu},
    {"floor", rounded<floor_type>},
    {"ceil", rounded<ceil_type>},
    {"round", rounded<round_type>},
    {"square", square},
    {"rsqrt", rsqrt},
    {"expm1", expm1},
    {"log1p", log1p},
    {"trunc", trunc},
    {"silu", silu},
    {"mish", mish},
    {"gelu", gelu_op},
    {"gelu_tanh", gelu_tanh_op},
    {"add_scalar", with_scalar<kernels::add_scalar, add_type>},
    {"rsub_scalar", scalar_with<kernels::rsub_scalar, sub_type>},
    {"mul_scalar", with_scalar<kernels::mul_scalar, mul_type>},
    {"div_scalar", with_scalar<kernels::div_scalar, div_type>},
    {"rdiv_scalar", scalar_with<kernels::rdiv_scalar, div_type>},
    {"pow_scalar", with_scalar<kernels::pow_scalar, pow_type>},
    {"clamp", clip<kernels::clamp>},
    {"hardtanh", clip<kernels::hardtanh>},
    {"elu", with_slope<kernels::elu, elu_type>},
    {"leaky_relu", with_slope<kernels::leaky_relu, leaky_type>},
    {"add", binary<add_type>},
    {"sub", binary<sub_type>},
    {"mul", binary<mul_type>},
    {"div", binary<div_type>},
    {"pow", binary<pow_type>},
    {"maximum", binary<max_type>},
    {"minimum", binary<min_type>},
    {"remainder", remainder},
    {"eq", compare<equal_type>},
    {"ne", not_equal},
    {"lt", compare<less_type>},
    {"le", compare<less_equal_type>},
    {"gt", compare<greater_type>},
    {"ge", compare<greater_equal_type>},
    {"logical_and", logical<and_type>},
    {"logical_or", logical<or_type>},
    {"logical_not", logical_not},
    {"isfinite", is_finite},
    {"where", where},
    {"masked_fill", masked_fill},
};

}  // namespace

// x / 2 (1 + erf(x / sqrt(2))).
Value gelu(Graph& g, Value x) {
    const auto number = [&](double value) { return g.number(value, g.dtype(x)); };
    const Value erf = g.like("Erf", {g.like("Div", {x, number(std::sqrt(2.0))})});
    return g.like("Mul", {g.like("Mul", {x, g.like("Add", {erf, number(1)})}), number(0.5)});
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
Value gelu_tanh(Graph& g, Value x) {
    const auto number = [&](double value) { return g.number(value, g.dtype(x)); };
    const Value cube = g.like("Mul", {x, g.like("Mul", {x, x})});
    const Value inner = g.like("Add", {x, g.like("Mul", {cube, number(0.044715)})});
    const Value tanh = g.like("Tanh", {g.like("Mul", {inner, number(0.79788456080286536)})});
    return g.like("Mul", {g.like("Mul", {x, g.like("Add", {tanh, number(1)})}), number(0.5)});
}

std::span<const MappingOf> elementwise_mappings() { return mappings; }

}  // namespace mezzo::onnx
