// Inputs of autograd::grad(): the nodes that lead to them, and their gradients.
#include <algorithm>

#include "autograd/engine.h"
#include "autograd/extra.h"

namespace mezzo {

GradTargets::GradTargets(const Tensors& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        check(inputs[i].defined() && tracked(inputs[i]), ErrorKind::state, "grad: input ", i,
              " does not require grad; call set_requires_grad() before it is used");
        const Edge edge = edge_of(inputs[i]);
        targets_.push_back({edge.leaf.impl(), edge.node.get(), edge.output, {}});
    }
}

// Nothing older than the oldest target can reach one, unless a target is a leaf.
void GradTargets::find_paths(const Tensors& outputs) {
    std::uint64_t oldest = ~std::uint64_t(0);
    for (const Target& t : targets_) oldest = std::min(oldest, t.leaf ? 0 : t.node->sequence);
    std::unordered_set<Node*> seen;
    std::vector<Node*> order, stack;
    for (const Tensor& y : outputs)
        if (const Edge edge = edge_of(y); edge.node) stack.push_back(edge.node.get());
    while (!stack.empty()) {
        Node* node = stack.back();
        stack.pop_back();
        if (node->sequence < oldest || !seen.insert(node).second) continue;
        order.push_back(node);
        for (const Edge& edge : node->edges)
            if (edge.node) stack.push_back(edge.node.get());
    }
    // A node comes after the nodes that it depends on.
    std::sort(order.begin(), order.end(),
              [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    for (const Node* node : order)
        if (is_opaque(*node) || std::any_of(node->edges.begin(), node->edges.end(),
                                            [&](const Edge& edge) { return leads_to_target(edge); }))
            nodes_.insert(node);
}

bool GradTargets::leads_to_target(const Edge& edge) const {
    if (edge.leaf.defined()) return leaf_target(edge.leaf) != nullptr;
    if (!edge.node) return false;
    return leads_to_target(*edge.node) || std::any_of(targets_.begin(), targets_.end(), [&](const Target& t) {
               return t.node == edge.node.get() && t.output == edge.output;
           });
}

bool GradTargets::includes_result_of(const Node& node) const {
    return std::any_of(targets_.begin(), targets_.end(), [&](const Target& t) { return t.node == &node; });
}

const GradTargets::Target* GradTargets::leaf_target(const Tensor& leaf) const {
    for (const Target& t : targets_)
        if (t.leaf == leaf.impl()) return &t;
    return nullptr;
}

Tensor* GradTargets::gradient_of(const Tensor& leaf) {
    const Target* const target = leaf_target(leaf);
    return target != nullptr ? &targets_[std::size_t(target - targets_.data())].gradient : nullptr;
}

void GradTargets::collect(const Node& node, const Tensors& gradients) {
    for (Target& t : targets_)
        if (t.node == &node && gradients[t.output].defined()) t.gradient = gradients[t.output];
}

// Hooks of targets that are results have run when their node was visited.
void GradTargets::run_leaf_hooks() {
    for (Target& t : targets_)
        if (t.leaf && t.gradient.defined()) t.gradient = after_hooks(Tensor(t.leaf), t.gradient);
}

// The gradient of a leaf that is listed twice has been collected in the first of its targets.
Tensor GradTargets::gradient(std::size_t i) const {
    for (std::size_t j = 0; j < i && !targets_[i].gradient.defined(); ++j)
        if (targets_[j].same_tensor(targets_[i])) return targets_[j].gradient;
    return targets_[i].gradient;
}

}  // namespace mezzo
