// Questions that a gradient function may ask the engine, through its node: whether it may add to an existing
// gradient itself (GEMM beta = 1), and whether it may compute gradients inside the op below.
#include <cassert>
#include <utility>

#include "autograd/engine.h"
#include "autograd/extra.h"
#include "autograd/op_observer.h"

namespace mezzo {

bool Node::needs(int i) const {
    if (!edges[std::size_t(i)].needed()) return false;
    const Engine* const engine = thread_state.engine;
    return !engine || engine->needs(*this, i);
}

bool Engine::needs(const Node& node, int i) const {
    const Edge& edge = node.edges[std::size_t(i)];
    if (!edge.needed()) return false;
    return !targets_ || parent_ || targets_->leads_to_target(edge);
}

Tensor Node::accumulator(int i) const {
    const Engine* const engine = thread_state.engine;
    const Tensor& leaf = edges[std::size_t(i)].leaf;
    return engine && leaf.defined() ? engine->accumulator(leaf) : Tensor();
}

Tensor Engine::accumulator(const Tensor& leaf) const {
    if (targets_ || create_graph_ || leaf_hooks(leaf)) return {};
    GradientSlot& slot = leaf->grad_meta->gradient;
    if (leaf.dtype() == float32) slot.begin_in_bucket();
    const Tensor& grad = slot.read();
    const bool fits = grad.defined() && grad.is_contiguous() && grad.dtype() == float32 && !tracked(grad);
    return fits ? slot.add_in_place(scaled_) : Tensor();
}

Tensor Node::take_accumulated(int i, bool alone) const {
    Engine* const engine = thread_state.engine;
    return engine ? engine->take_pending(edges[std::size_t(i)], alone) : Tensor();
}

// The gradient function adds to the gradient that it gets, and its result is then sent like any other.
Tensor Engine::take_pending(const Edge& edge, bool alone) {
    ReadyQueue::Entry* const entry = create_graph_ || !edge.node ? nullptr : queue_.find(*edge.node);
    if (entry == nullptr) return {};
    Tensor& sum = entry->gradients[edge.output];
    const bool fits = sum.defined() && sum.is_contiguous() && (!alone || owned_alone(sum));
    return fits ? std::exchange(sum, Tensor()) : Tensor();
}

bool Node::sole_consumer(int i) const {
    Engine* const engine = thread_state.engine;
    return engine && engine->is_sole_consumer(edges[std::size_t(i)]);
}

// `consumers` counts every edge that was ever made to the node, so 1 means that this edge is the only one.
// The root gradients are sent before the first visit, so a node that has one is in the queue by now.
bool Engine::is_sole_consumer(const Edge& edge) {
    const Node* const node = edge.node.get();
    if (!node || node->consumers.load(std::memory_order_relaxed) != 1 || queue_.find(*node) != nullptr)
        return false;
    if (node->extra && !node->extra->hooks.empty()) return false;
    return !targets_ || !targets_->includes_result_of(*node);
}

void Node::send_inner(int i, const Tensors& gradients) const {
    thread_state.engine->send_inner(edges[std::size_t(i)].node, gradients);
}

void Engine::send_inner(const Ref<Node>& node, const Tensors& gradients) {
    assert(gradients.size() <= node->op->traits().fused_gradients);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (!gradients[i].defined()) continue;
        Observers::notify([&](OpObserver& one) { one.fused_gradient(*node, gradients[i]); });
        send(node, node->outputs.size() + i, gradients[i]);
    }
}

}  // namespace mezzo
