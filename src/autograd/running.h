// Interface of the running backward, for nodes and user-defined functions.
#pragma once

#include "autograd/row.h"
#include "core/scale_parts.h"

namespace mezzo {

struct Running {
    virtual ~Running() = default;
    // Whether the gradient of input i of the node leads to a requested gradient.
    virtual bool wants(const Node& node, int i) const = 0;
    // Whether a kernel may add a product to leaf's grad().
    virtual bool may_accumulate_in_place(const Tensor& leaf) const = 0;
    // Whether this edge is the only use of its node, and neither a hook nor grad() reads the gradient there.
    virtual bool sole_way(const Edge& edge) const = 0;
    // Removes and returns the accumulated gradient of the result that an edge leads to (Node::take_waiting).
    virtual Tensor take_waiting(const Edge& edge, bool alone) = 0;
    // Adds a gradient of a value inside of `node`: number `place` of those that follow the gradients of its
    // results.
    virtual void send_inner(const Ref<Node>& node, std::size_t place, Tensor gradient) = 0;
    // Adds a contribution to the gradient of a leaf. scaled: its scale state (core/scale_parts.h).
    virtual void deliver(const Tensor& leaf, Tensor gradient, ScaleParts scaled) = 0;
    // Scale state of the gradients of the node that is being visited.
    virtual ScaleParts scaled() const = 0;
    // Adds `parts` to that state, for a node that multiplied by a scale.
    virtual void meet_scale(ScaleParts parts) = 0;
    virtual bool create_graph() const = 0;
};

Running* running_backward();  // null outside a backward

// d(outputs)/d(inputs) inside a running backward. Gradients of leaves that are not among `inputs` go to the
// running backward.
Tensors nested_backward(const Tensors& outputs, const Tensors& grad_outputs, const Tensors& inputs);

// The gradient of an op without a vjp: runs its decomposition again, recorded, and differentiates that.
Tensors through_decomposition(const Node& node, const Tensors& g, bool create_graph);

}  // namespace mezzo
