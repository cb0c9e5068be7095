// How ops become ONNX operators: one function per row.
#pragma once

#include <span>
#include <string_view>

#include "autograd/row.h"
#include "onnx/graph.h"

namespace mezzo::onnx {

// An op that has run. `in` are its inputs in the graph, `none` for undefined ones; integers are floating already where
// the row converts them.
struct Call {
    Graph& graph;
    const Row& row;
    const void* at;
    const Values& in;
    const Tensor& result;

    const Shape& shape() const { return result.shape(); }
    Dtype dtype() const { return result.dtype(); }
    // A must be the struct of the row's attributes.
    template <class A> const A& attributes() const { return *static_cast<const A*>(at); }
    // An operator with the op's shape and dtype.
    Value emit(const char* type, const Values& inputs, const Attributes& attributes = {}) const {
        return graph.node(type, inputs, shape(), dtype(), attributes);
    }
    Value number(double value) const { return graph.number(value, dtype()); }
};

// The op's first result in the graph; `none`: the operators do not have it, and the row's decomposition must do.
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

// gelu(x), by erf and by tanh.
Value gelu(Graph& graph, Value x);
Value gelu_tanh(Graph& graph, Value x);

}  // namespace mezzo::onnx
