// The backward that this thread is running, as nodes and user-defined functions see it.
#pragma once

#include "autograd/row.h"
#include "core/scale_parts.h"

namespace mezzo {

struct Running {
    virtual ~Running() = default;
    // Whether the gradient of input i of the node leads to anything that was asked for.
    virtual bool wants(const Node& node, int i) const = 0;
    // Whether a product may be added to leaf's grad() inside the kernel.
    virtual bool may_accumulate_in_place(const Tensor& leaf) const = 0;
    // Whether this edge alone brings a gradient to its node, and neither a hook nor grad() reads it there.
    virtual bool sole_way(const Edge& edge) const = 0;
    // Gives up the gradient that waits at the result an edge leads to (Node::take_waiting).
    virtual Tensor take_waiting(const Edge& edge, bool alone) = 0;
    // Adds an inner gradient of `node`: number `place` of those that follow the gradients of its results.
    virtual void send_inner(const Ref<Node>& node, std::size_t place, Tensor gradient) = 0;
    // Adds a contribution to the gradient of a leaf. scaled: its scale parts (core/scale_parts.h).
    virtual void deliver(const Tensor& leaf, Tensor gradient, ScaleParts scaled) = 0;
    // Scale parts of the gradients of the node that is being visited.
    virtual ScaleParts scaled() const = 0;
    // Adds parts to them: the node multiplied by a scale.
    virtual void meet_scale(ScaleParts parts) = 0;
    virtual bool create_graph() const = 0;
};

Running* running_backward();  // null outside a backward

// d(outputs)/d(inputs) inside a running backward, which gets the gradients of all leaves that are not among
// `inputs`.
Tensors nested_backward(const Tensors& outputs, const Tensors& grad_outputs, const Tensors& inputs);

// The gradient of an op without a vjp: runs its decomposition again, recorded, and differentiates that.
Tensors through_decomposition(const Node& node, const Tensors& g, bool create_graph);

}  // namespace mezzo
