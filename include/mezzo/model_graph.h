// What a model computes, as a graph of its ops by module: for TensorBoard (SummaryWriter::add_graph).
#pragma once

#include <string>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo {

// An op, a parameter or an input of the model.
struct GraphNode {
    std::string name;  // unique; the path of its module and its own name: "encoder/layers/0/linear"
    std::string op;    // "linear"; "Parameter" or "Input" for what no op has made
    std::vector<std::string> inputs = {};  // names of nodes
    Shape shape = {};                      // of its first result
    Dtype dtype = Dtype::float32;
};
using ModelGraph = std::vector<GraphNode>;  // a node comes after its inputs

namespace nn {

namespace detail {
[[nodiscard]] ModelGraph trace_graph(Module& model, const autograd::Callback<void()>& forward);
}

// Runs model(inputs...) once as summary() does, and lists what it computes.
template <class M, class... Inputs> [[nodiscard]] ModelGraph graph(M& model, const Inputs&... inputs) {
    return detail::trace_graph(model, [&] { static_cast<void>(model(inputs...)); });
}

}  // namespace nn

}  // namespace mezzo

#pragma GCC visibility pop
