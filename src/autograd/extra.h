// What few nodes have: hooks on their results, or the callbacks of a user-defined function or checkpoint.
#pragma once

#include <memory>

#include "autograd/row.h"
#include "autograd/state.h"
#include "mezzo/autograd.h"

namespace mezzo {

struct Hook {
    int id;
    std::uint32_t output;  // of the node; 0 for leaves
    autograd::GradHook function;
};
using Hooks = std::vector<Hook>;

// Runs the hooks of one tensor over its gradient.
Tensor run_hooks(const Hooks& hooks, std::uint32_t output, Tensor gradient);
// The hooks of a leaf, or null.
Hooks* leaf_hooks(const Tensor& leaf);

// Replaces a row's vjp for one node.
struct NodeFunction {
    virtual ~NodeFunction() = default;
    virtual Tensors backward(const Node& node, const Tensors& g) = 0;
    // It delivers gradients to leaves that are no edges of the node, so no analysis may skip it.
    virtual bool opaque() const { return false; }
    virtual void release() = 0;  // what it keeps; called once backward has run
};

struct NodeExtra {
    Hooks hooks;
    std::unique_ptr<NodeFunction> function;
};

NodeExtra& extra_of(Node& node);

// A tensor with x's elements whose history is one identity node over x's edge: a unique place to ask a
// gradient for.
Tensor reattach(const Tensor& value, const Edge& edge, Dtype edge_dtype);
Edge edge_of(const Tensor& x);

// What an op's decomposition makes of the values. As kernels do, it computes in float32 where they are 16 bit.
Tensors decomposed(const Row& row, const Tensors& values, const void* at);

// The node of results[0..], with edges to `given`. The results must be fresh tensors without history.
Ref<Node> record(const Row& row, In given, const AttributesRef& at, const Tensors& results);

}  // namespace mezzo
