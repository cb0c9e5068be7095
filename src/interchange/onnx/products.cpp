// Mappings of matrix products: linear layers and matmul. Attention is exported as its decomposition.
#include "interchange/onnx/mapping.h"
#include "kernels/matmul.h"
#include "kernels/merged_linear.h"

namespace mezzo::onnx {

namespace {

Shape with_last(Shape shape, std::int64_t size) {
    shape.back() = size;
    return shape;
}

// Returns x w^T + b; `bias` is `none` without a bias.
Value product(const Call& call, Value x, Value weight, Value bias) {
    Graph& g = call.graph;
    const Shape result = with_last(g.shape(x), g.shape(weight)[0]);
    if (result.size() == 2) {
        const Values inputs = bias == none ? Values{x, weight} : Values{x, weight, bias};
        return g.node("Gemm", inputs, result, call.dtype(), {{"transB", std::int64_t(1)}});
    }
    const Value y = g.node("MatMul", {x, g.permuted(weight, {1, 0})}, result, call.dtype());
    return bias == none ? y : g.like("Add", {y, bias});
}

Value activated(Graph& g, Value x, Activation activation) {
    switch (activation) {
        case Activation::relu:
            return g.like("Relu", {x});
        case Activation::gelu:
            return gelu(g, x);
        case Activation::gelu_tanh:
            return gelu_tanh(g, x);
        case Activation::none:
            break;
    }
    return x;
}

Value linear(const Call& call) {
    const Value y = product(call, call.in[0], call.in[1], call.in.size() > 2 ? call.in[2] : none);
    return activated(call.graph, y, call.attributes<kernels::Linear>().activation);
}

Value merged_linear(const Call& call) {
    const auto parts = std::size_t(call.attributes<kernels::MergedLinear>().parts);
    Values results;
    for (std::size_t i = 1; i <= parts; ++i) {
        const Value bias = call.in.size() > 1 + parts ? call.in[i + parts] : none;
        results.push_back(product(call, call.in[0], call.in[i], bias));
    }
    return call.emit("Concat", results, {{"axis", std::int64_t(call.shape().size() - 1)}});
}

Value matmul(const Call& call) { return call.emit("MatMul", {call.in[0], call.in[1]}); }

constexpr MappingOf mappings[] = {
    {"linear", linear}, {"linear_relu", linear}, {"linear_gelu", linear}, {"merged_linear", merged_linear},
    {"matmul", matmul},
};

}  // namespace

std::span<const MappingOf> product_mappings() { return mappings; }

}  // namespace mezzo::onnx
