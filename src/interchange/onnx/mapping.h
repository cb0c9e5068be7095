// Maps ops to ONNX operators: one function per op.
#pragma once

#include <span>
#include <string_view>

#include "autograd/op.h"
#include "interchange/onnx/graph.h"

namespace mezzo::onnx {

// An op that has run. `in` are its inputs in the graph, `none` for undefined ones; integer inputs are already
// converted to floating if the op converts them.
struct Call {
    Graph& graph;
    const AnyOp& op;
    const void* at;
    const Values& in;
    const Tensor& result;

    const Shape& shape() const { return result.shape(); }
    Dtype dtype() const { return result.dtype(); }
    // A must be the struct of the op's attributes.
    template <class A> const A& attributes() const { return *static_cast<const A*>(at); }
    // Adds an operator with the op's shape and dtype.
    Value emit(const char* type, const Values& inputs, const Attributes& attributes = {}) const {
        return graph.node(type, inputs, shape(), dtype(), attributes);
    }
    Value number(double value) const { return graph.number(value, dtype()); }
};

// Returns the op's first result in the graph, or `none` if no operator computes it and the op's decomposition
// must be used.
using Mapping = Value (*)(const Call&);
struct MappingOf {
    std::string_view op;
    Mapping map;
};
std::span<const MappingOf> elementwise_mappings();
std::span<const MappingOf> shape_mappings();
std::span<const MappingOf> product_mappings();
std::span<const MappingOf> norm_mappings();
std::span<const MappingOf> image_mappings();

// Both add gelu(x), exact by erf and approximate by tanh.
Value gelu(Graph& graph, Value x);
Value gelu_tanh(Graph& graph, Value x);

}  // namespace mezzo::onnx
