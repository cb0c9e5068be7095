// Engine of backward passes. It visits the nodes of a graph newest first, which is a topological order
// because a node is newer than all nodes that it depends on:
//
//     engine.cpp        visits a node, runs its gradient, and sends the results along its edges
//     accumulate.cpp    adds the gradients that reach a leaf
//     grad_targets.cpp  autograd::grad(): finds the nodes that lead to its inputs, collects their gradients
//     grad_fusion.cpp   answers the questions of a gradient function: Node::accumulator() and others
//     backward.cpp      public functions, nested backward passes
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/backward_listener.h"
#include "autograd/op.h"
#include "core/gradient/scale_state.h"
#include "core/thread_state.h"

namespace mezzo {

// Nodes that have gradients and have not been visited. The newest, by sequence number, is the next one.
class ReadyQueue {
public:
    struct Entry {
        Ref<Node> node = {};
        Tensors gradients =
            {};                 // of the node's results, then of its inner values (OpTraits::fused_gradients)
        ScaleState scaled = 0;  // scale state of the gradients
    };
    bool empty() const { return newest() == 0; }
    std::uint64_t newest() const;   // sequence number of the next node; 0: the queue is empty
    Entry* find(const Node& node);  // null if the node is not in the queue
    // The node's entry, which is made if there is none. The reference is valid until the next call.
    Entry& operator[](const Ref<Node>& node);
    // Removes and returns the next node. The queue is not empty.
    Entry take_newest();
    // Keeps the empty list of a visited node for a node to come.
    void recycle(Tensors&& gradients);

private:
    // Both are sorted by sequence number, and all of recent_ is newer than all of older_. A sorted vector
    // takes one allocation for all nodes, but an insertion moves the entries behind it. So its length is
    // limited, and older entries go to a map: in a graph with 100,000 waiting nodes an insertion still
    // takes logarithmic time.
    static constexpr std::size_t most_recent = 64;
    std::vector<Entry> recent_;
    std::map<std::uint64_t, Entry> older_;
    std::vector<Tensors> spare_;

    bool is_older(std::uint64_t sequence) const {
        return !older_.empty() && sequence <= older_.rbegin()->first;
    }
    std::vector<Entry>::iterator position(std::uint64_t sequence);
};

// Inputs of autograd::grad(), or of a nested backward pass, with the gradients that are collected for them.
class GradTargets {
public:
    // Throws Error(state) if an input is not part of a graph.
    explicit GradTargets(const Tensors& inputs);

    // Finds the nodes from which a target can be reached.
    void find_paths(const Tensors& outputs);
    // Whether a gradient that arrives at the node, or goes along the edge, contributes to a target.
    bool leads_to_target(const Node& node) const { return nodes_.contains(&node); }
    bool leads_to_target(const Edge& edge) const;

    // Whether a result of the node is a target.
    bool includes_result_of(const Node& node) const;
    // The collected gradient of a leaf; null if it is no target.
    Tensor* gradient_of(const Tensor& leaf);
    // Stores the gradients of those results of the node that are targets.
    void collect(const Node& node, const Tensors& gradients);
    // Runs the hooks of targets that are leaves.
    void run_leaf_hooks();
    // The gradient of input i, undefined if there is none. The same input may be listed twice.
    Tensor gradient(std::size_t i) const;

private:
    // A leaf, or one result of a node.
    struct Target {
        TensorImpl* leaf = nullptr;
        Node* node = nullptr;
        std::uint32_t output = 0;
        Tensor gradient = {};
        bool same_tensor(const Target& other) const {
            return leaf == other.leaf && node == other.node && output == other.output;
        }
    };
    const Target* leaf_target(const Tensor& leaf) const;

    std::vector<Target> targets_;
    std::unordered_set<const Node*> nodes_;  // that lead to a target
};

// One backward pass.
class Engine {
public:
    // targets: collects their gradients; null: leaves accumulate into grad(). parent: the backward pass that
    // runs this one, of a checkpoint, inside of itself. It gets the gradients of leaves that are no targets.
    Engine(GradTargets* targets, bool create_graph, bool retain_graph, Engine* parent);

    // Sets the listener of the pass. Without one, the pass asks make_backward_listener for it.
    void listen(std::unique_ptr<BackwardListener> listener) { listener_ = std::move(listener); }
    void run(const Tensors& outputs, const Tensors& grad_outputs);

    bool create_graph() const { return create_graph_; }
    const char* op() const { return targets_ != nullptr && parent_ == nullptr ? "grad" : "backward"; }
    // Adds `parts` to the scale state of the gradients of the node that is being visited, for a node that
    // multiplied by a scale.
    void add_scale(ScaleState parts);

    // Questions of gradient functions, which Node passes on (grad_fusion.cpp).
    // Whether the gradient of input i of the node leads to a requested gradient.
    bool needs(const Node& node, int i) const;
    // Memory of leaf's grad() for a kernel that adds to it; undefined if no kernel may.
    Tensor accumulator(const Tensor& leaf) const;
    // Removes and returns the accumulated gradient of the result that the edge leads to.
    Tensor take_pending(const Edge& edge, bool alone);
    // Whether the edge is the only use of its node, and neither a hook nor grad() reads the gradient there.
    bool is_sole_consumer(const Edge& edge);
    // Adds gradients of values inside of the op of `node`.
    void send_inner(const Ref<Node>& node, const Tensors& gradients);

private:
    struct HookedLeaf {
        Tensor leaf, sum;
        ScaleState scaled;
    };
    void propagate(const Tensors& outputs, const Tensors& grad_outputs);
    void notify_begin(const Tensors& outputs, const Tensors& grad_outputs);
    void visit_newest();
    void visit(Node& node, Tensors& gradients);
    Tensors gradients_of_inputs(const Node& node, const Tensors& gradients) const;
    void send(const Edge& edge, Tensor gradient);
    void send(const Ref<Node>& node, std::size_t index, Tensor gradient);

    void add(Tensor& sum, Tensor gradient) const;
    void deliver(const Tensor& leaf, Tensor gradient, ScaleState scaled);
    void deliver_hooked();
    void accumulate(const Tensor& leaf, Tensor gradient, ScaleState scaled) const;

    GradTargets* targets_;
    bool create_graph_, retain_graph_;
    Engine* parent_;
    ScaleState scaled_;  // scale state of the gradients of the node that is being visited
    ReadyQueue queue_;
    std::vector<HookedLeaf> hooked_;              // leaves with hooks, which run on the total
    std::unique_ptr<BackwardListener> listener_;  // or null
};

// Whether the elements of x may be overwritten: there is no other reference to it or to its memory. Acquire:
// another thread's accesses to the elements, before it dropped its reference, happen before the writes.
inline bool owned_alone(const Tensor& x) {
    return x->refs.load(std::memory_order_acquire) == 1 &&
           x->storage->refs.load(std::memory_order_acquire) == 1 && x.is_contiguous();
}

// Runs the hooks of a leaf on its total gradient. A callback may have removed them since the first part came.
Tensor after_hooks(const Tensor& leaf, Tensor gradient);

// d(outputs)/d(inputs) inside a running backward pass. Gradients of leaves that are not among `inputs` go to
// the running one.
Tensors nested_backward(const Tensors& outputs, const Tensors& grad_outputs, const Tensors& inputs);

}  // namespace mezzo
