// Optional data of a node: hooks on its results, or the callbacks of a user-defined function or checkpoint.
#pragma once

#include <memory>

#include "autograd/autocast_state.h"
#include "autograd/op.h"
#include "core/internal.h"
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
inline Hooks* leaf_hooks(const Tensor& leaf) {
    auto* hooks = static_cast<Hooks*>(leaf->grad_meta->hooks);
    return hooks && !hooks->empty() ? hooks : nullptr;
}

// Replaces an op's vjp for one node.
struct NodeFunction {
    virtual ~NodeFunction() = default;
    virtual Tensors backward(const Node& node, const Tensors& g) = 0;
    // Whether it delivers gradients to leaves that are not edges of the node. The engine then visits the node
    // even if none of its edges leads to a target.
    virtual bool opaque() const { return false; }
    virtual In saved() const { return {}; }  // tensors that backward() reads, as far as they are known
    virtual void release() = 0;              // frees what it saved; called once backward has run
};

struct NodeExtra {
    Hooks hooks;
    std::unique_ptr<NodeFunction> function;
};

NodeExtra& extra_of(Node& node);
inline bool is_opaque(const Node& node) {
    return node.extra && node.extra->function && node.extra->function->opaque();
}

// A tensor with the elements of `value` whose history is a new identity node with the given edge, so that its
// gradient can be requested apart from all others. The gradient is passed on in edge_dtype.
Tensor reattach(const Tensor& value, const Edge& edge, Dtype edge_dtype);
MEZZO_INTERNAL Edge edge_of(const Tensor& x);

// Runs an op's decomposition on the values. 16-bit values are converted to float32 first, because kernels
// compute with them in float32, too.
MEZZO_INTERNAL Tensors decomposed(const AnyOp& op, const Tensors& values, const void* at);

// The gradient of an op without a vjp: runs its decomposition again, recorded, and differentiates that.
Tensors through_decomposition(const Node& node, const Tensors& g, bool create_graph);

// The dtype in which an op with OpTraits::integers_to_real computes those of these inputs that are integral.
MEZZO_INTERNAL Dtype real_dtype(In values);

// Runs a user-defined function as the op `op`, whose name and attributes the node and observers get. The ops
// that forward runs are not observed.
Tensors apply_as(const AnyOp& op, const AttributesRef& at, autograd::Forward forward,
                 autograd::Backward backward, const Tensors& inputs);

// A node without inputs and results, newer than all others.
Ref<Node> new_node();

// Makes the node of the results, with edges to `given`. The results must be new tensors without history.
Ref<Node> record(const AnyOp& op, In given, const AttributesRef& at, Out results);

}  // namespace mezzo
