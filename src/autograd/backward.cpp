// The autograd engine. It visits nodes newest first, which is a topological order because a node is newer
// than all nodes that it depends on.
#include <algorithm>
#include <cassert>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/extra.h"
#include "autograd/observer.h"
#include "autograd/op_observer.h"
#include "autograd/running.h"
#include "autograd/seed.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo {

namespace {

thread_local Running* current = nullptr;

// Acquire: another thread's accesses to the elements, before it dropped its reference, happen before the
// writes that follow here.
bool owned_alone(const Tensor& x) {
    return x->refs.load(std::memory_order_acquire) == 1 &&
           x->storage->refs.load(std::memory_order_acquire) == 1 && x.is_contiguous();
}

// An input of autograd::grad(): a leaf, or one result of a node.
struct Target {
    TensorImpl* leaf = nullptr;
    Node* node = nullptr;
    std::uint32_t output = 0;
    Tensor gradient = {};
};

class Engine final : public Running {
public:
    // With targets, their gradients are collected; without, leaves accumulate into grad(). A nested run (of a
    // checkpoint) delivers gradients of leaves that are not among its targets to its parent.
    Engine(std::vector<Target>* targets, bool create_graph, bool retain_graph, Running* parent)
        : targets_(targets),
          create_graph_(create_graph),
          retain_graph_(retain_graph),
          parent_(parent),
          inner_(current != nullptr),
          scaled_(current != nullptr ? current->scaled() : 0) {}

    void run(const Tensors& outputs, const Tensors& grad_outputs);
    void propagate(const Tensors& outputs, const Tensors& grad_outputs);

    bool wants(const Node& node, int i) const override {
        const Edge& edge = node.edges[std::size_t(i)];
        if (!edge.needed()) return false;
        if (!targets_ || parent_) return true;
        if (edge.leaf.defined()) return leaf_target(edge.leaf.impl()) != nullptr;
        return leads_to_target_.contains(edge.node.get()) || is_target(edge);
    }
    bool may_accumulate_in_place(const Tensor& leaf) const override {
        if (targets_ || create_graph_ || leaf_hooks(leaf)) return false;
        GradientSlot& slot = leaf->grad_meta->gradient;
        if (leaf.dtype() == float32) slot.begin_at_home();
        const Tensor& grad = slot.read();
        return grad.defined() && grad.is_contiguous() && grad.dtype() == float32 && !tracked(grad);
    }
    bool sole_way(const Edge& edge) const override;
    Tensor take_waiting(const Edge& edge, bool alone) override;
    void send_inner(const Ref<Node>& node, std::size_t place, Tensor gradient) override {
        Observers::tell([&](OpObserver& one) { one.inner_gradient(*node, gradient); });
        send(node, node->outputs.size() + place, std::move(gradient));
    }
    void deliver(const Tensor& leaf, Tensor gradient, ScaleParts scaled) override;
    ScaleParts scaled() const override { return scaled_; }
    void meet_scale(ScaleParts parts) override {
        scaled_ = sum_of_parts(scaled_, parts);
        if (parent_) parent_->meet_scale(parts);
    }
    bool create_graph() const override { return create_graph_; }

private:
    struct Pending {
        Ref<Node> node;
        Tensors gradients;
        ScaleParts scaled = 0;
    };
    struct Hooked {
        Tensor leaf, sum;
        ScaleParts scaled;
    };
    Target* leaf_target(TensorImpl* leaf) const {
        for (Target& t : *targets_)
            if (t.leaf == leaf) return &t;
        return nullptr;
    }
    bool is_target(const Edge& edge) const {
        return std::any_of(targets_->begin(), targets_->end(), [&](const Target& t) {
            return t.node == edge.node.get() && t.output == edge.output;
        });
    }
    void find_paths(const Tensors& outputs);
    void run_target_hooks();
    void send(const Edge& edge, Tensor gradient);
    void send(const Ref<Node>& node, std::size_t place, Tensor gradient);
    Pending& pending_of(const Ref<Node>& node);
    void visit_newest();
    void add(Tensor& sum, Tensor gradient) const;
    void visit(Node& node, Tensors& gradients);
    void collect(const Node& node, const Tensors& gradients);
    Tensor fitted(const Node& node, int i, Tensor gradient) const;
    void accumulate(const Tensor& leaf, Tensor gradient, ScaleParts scaled) const;

    std::vector<Target>* targets_;
    bool create_graph_, retain_graph_;
    Running* parent_;
    bool inner_;         // whether it runs inside another backward
    ScaleParts scaled_;  // scale state of the gradients of the node that is being visited
    using PendingNodes = std::unordered_map<Node*, Pending>;
    PendingNodes pending_;
    std::vector<PendingNodes::node_type> spare_;  // of visited nodes, for the next ones
    std::vector<Node*> heap_;                     // by sequence, newest on top
    std::unordered_set<Node*> leads_to_target_;   // only with targets
    std::vector<Hooked> hooked_;                  // leaves with hooks, which run on the total
    std::unique_ptr<BackwardWatch> watch_;        // only with observers
};

bool older(const Node* a, const Node* b) { return a->sequence < b->sequence; }

// Marks every node from which a target can be reached. Nothing older than the oldest target can reach one,
// unless a target is a leaf.
void Engine::find_paths(const Tensors& outputs) {
    std::uint64_t oldest = ~std::uint64_t(0);
    for (const Target& t : *targets_) oldest = std::min(oldest, t.leaf ? 0 : t.node->sequence);
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
    std::sort(order.begin(), order.end(), older);  // what a node depends on comes before it
    for (Node* node : order) {
        const bool leads =
            is_opaque(*node) || std::any_of(node->edges.begin(), node->edges.end(), [&](const Edge& e) {
                if (e.leaf.defined()) return leaf_target(e.leaf.impl()) != nullptr;
                return e.node && (leads_to_target_.contains(e.node.get()) || is_target(e));
            });
        if (leads) leads_to_target_.insert(node);
    }
}

void Engine::add(Tensor& sum, Tensor gradient) const {
    if (!sum.defined()) {
        sum = std::move(gradient);
    } else if (!create_graph_ && owned_alone(sum)) {
        sum.add_(gradient);
    } else {
        sum = sum + gradient;
    }
}

void Engine::send(const Edge& edge, Tensor gradient) {
    if (edge.leaf.defined()) {
        deliver(edge.leaf, std::move(gradient), scaled_);
        return;
    }
    send(edge.node, edge.output, std::move(gradient));
}

Engine::Pending& Engine::pending_of(const Ref<Node>& node) {
    if (const auto found = pending_.find(node.get()); found != pending_.end()) return found->second;
    heap_.push_back(node.get());
    std::push_heap(heap_.begin(), heap_.end(), older);
    Pending* pending = nullptr;
    if (spare_.empty()) {
        pending = &pending_[node.get()];
    } else {
        spare_.back().key() = node.get();
        pending = &pending_.insert(std::move(spare_.back())).position->second;
        spare_.pop_back();
    }
    pending->node = node;
    pending->gradients.resize(node->outputs.size() + node->row->inner_gradients);
    pending->scaled = 0;
    return *pending;
}

// Adds a gradient to those of `node` at index `place`: of a result, or, after the results, of a value inside
// the op (Row::inner_gradients).
void Engine::send(const Ref<Node>& node, std::size_t place, Tensor gradient) {
    Pending& pending = pending_of(node);
    pending.scaled = sum_of_parts(pending.scaled, scaled_);
    Tensor& sum = pending.gradients[place];
    const bool met = sum.defined();
    add(sum, std::move(gradient));
    if (met) Observers::tell([&](OpObserver& one) { one.sum(*node, sum); });
}

void Engine::visit_newest() {
    std::pop_heap(heap_.begin(), heap_.end(), older);
    PendingNodes::node_type place = pending_.extract(heap_.back());
    heap_.pop_back();
    Pending& pending = place.mapped();
    scaled_ = pending.scaled;
    if (watch_) watch_->visiting(*pending.node);
    visit(*pending.node, pending.gradients);
    if (watch_) watch_->next(heap_.empty() ? 0 : heap_.front()->sequence);
    pending.gradients.clear();
    pending.node = {};
    spare_.push_back(std::move(place));
}

// `consumers` counts every edge that was ever made to the node, so 1 means that this edge is the only one.
// The gradients that backward starts with are sent before the first visit, so they would be pending by now.
bool Engine::sole_way(const Edge& edge) const {
    Node* const node = edge.node.get();
    if (!node || node->consumers.load(std::memory_order_relaxed) != 1 || pending_.contains(node))
        return false;
    if (node->extra && !node->extra->hooks.empty()) return false;
    return !targets_ ||
           std::none_of(targets_->begin(), targets_->end(), [&](const Target& t) { return t.node == node; });
}

// Hands out the gradient that is already accumulated for the edge's result. The vjp adds to it, and its
// result is then sent like any gradient.
Tensor Engine::take_waiting(const Edge& edge, bool alone) {
    const auto found = create_graph_ ? pending_.end() : pending_.find(edge.node.get());
    if (found == pending_.end()) return {};
    Tensor& sum = found->second.gradients[edge.output];
    const bool fits = sum.defined() && sum.is_contiguous() && (!alone || owned_alone(sum));
    return fits ? std::exchange(sum, Tensor()) : Tensor();
}

void Engine::deliver(const Tensor& leaf, Tensor gradient, ScaleParts scaled) {
    if (targets_) {
        if (Target* target = leaf_target(leaf.impl())) {
            add(target->gradient, std::move(gradient));
        } else if (parent_) {
            parent_->deliver(leaf, std::move(gradient), scaled);
        }
        return;
    }
    if (watch_) watch_->delivering(leaf);
    if (!leaf_hooks(leaf)) {
        accumulate(leaf, std::move(gradient), scaled);
        return;
    }
    for (Hooked& hooked : hooked_)
        if (hooked.leaf.impl() == leaf.impl()) {
            hooked.scaled = sum_of_parts(hooked.scaled, scaled);
            add(hooked.sum, std::move(gradient));
            return;
        }
    hooked_.push_back({leaf, std::move(gradient), scaled});
}

// Adds to leaf.grad(). A first gradient is written to the memory that the leaf's hook has for it (a bucket).
// Without such memory, a gradient without other references becomes grad() itself; any other is copied,
// because later gradients are added in place.
void Engine::accumulate(const Tensor& leaf, Tensor gradient, ScaleParts scaled) const {
    GradientSlot& slot = leaf->grad_meta->gradient;
    slot.add(std::move(gradient), scaled, [this, &slot](Tensor& total, Tensor more) {
        const Tensor home = total.defined() || create_graph_ ? Tensor() : slot.home();
        if (home.defined()) {
            total = home.copy_(more);
        } else if (!total.defined()) {
            total = owned_alone(more) ? std::move(more) : more.clone();
        } else if (create_graph_) {
            total = total + more;
        } else {
            total.add_(more);
        }
    });
}

// The gradient in the shape and dtype of the input that it belongs to. Broadcasting and autocast's
// conversions are undone here, once.
Tensor Engine::fitted(const Node& node, int i, Tensor gradient) const {
    const Meta& input = node.inputs[std::size_t(i)];
    if (!(gradient.shape() == input.shape)) gradient = sum_to(gradient, input.shape);
    if (gradient.dtype() != input.dtype) gradient = cast(gradient, input.dtype);
    check(gradient.device() == input.device, ErrorKind::device, node.row->name, ": the gradient of input ", i,
          " is on ", gradient.device(), ", the input on ", input.device);
    return gradient;
}

void Engine::collect(const Node& node, const Tensors& gradients) {
    for (Target& t : *targets_)
        if (t.node == &node && gradients[t.output].defined()) t.gradient = gradients[t.output];
}

// A callback may have removed the hooks that there were when the first part of the gradient came.
Tensor after_hooks(const Tensor& leaf, Tensor gradient) {
    const Hooks* const hooks = leaf_hooks(leaf);
    return hooks != nullptr ? run_hooks(*hooks, 0, std::move(gradient)) : gradient;
}

// Runs the hooks of leaves that are inputs of grad(); those of results ran when their node was visited.
void Engine::run_target_hooks() {
    if (!targets_ || parent_) return;
    for (Target& t : *targets_) {
        if (!t.leaf || !t.gradient.defined()) continue;
        t.gradient = after_hooks(Tensor(t.leaf), t.gradient);
    }
}

void Engine::visit(Node& node, Tensors& gradients) {
    if (node.extra && !node.extra->hooks.empty())
        for (std::size_t j = 0; j < gradients.size(); ++j)
            if (gradients[j].defined())
                gradients[j] = run_hooks(node.extra->hooks, std::uint32_t(j), gradients[j]);
    if (targets_) {
        collect(node, gradients);
        if (!parent_ && !leads_to_target_.contains(&node)) return;
    }
    check(!node.released, ErrorKind::state, node.row->name,
          ": backward has already freed this part of the graph; pass retain_graph = true to the first "
          "backward");
    if (node.scales != 0) meet_scale(node.scales);
    Observers::tell([&](OpObserver& one) { one.visiting(node); });
    const WatchedNode scope(node);
    Tensors result;
    if (node.extra && node.extra->function) {
        result = node.extra->function->backward(node, gradients);
    } else {
        result = node.row->vjp ? node.row->vjp(node, gradients)
                               : through_decomposition(node, gradients, create_graph_);
    }
    check(result.size() <= node.edges.size(), ErrorKind::state, node.row->name, ": its gradient has ",
          result.size(), " results for ", node.edges.size(), " inputs");
    gradients.clear();
    tell_accumulated(node, result);
    for (int i = 0; i < int(result.size()); ++i) {
        Tensor& gradient = result[std::size_t(i)];
        if (!gradient.defined() || !wants(node, i)) continue;
        gradient = fitted(node, i, std::move(gradient));
        Observers::tell([&](OpObserver& one) { one.gradient(node, i, gradient); });
        send(node.edges[std::size_t(i)], std::move(gradient));
    }
    if (retain_graph_) return;
    node.released = true;
    node.saved_inputs.clear();
    node.saved_outputs.clear();
    if (node.extra && node.extra->function) node.extra->function->release();
}

Tensor seed_for(const Tensor& output, const Tensors& grad_outputs, std::size_t i) {
    check(output.defined() && tracked(output), ErrorKind::state, "backward: output ", i,
          " does not require grad; it has no recorded history");
    if (i < grad_outputs.size() && grad_outputs[i].defined()) {
        const Tensor& seed = grad_outputs[i];
        check(seed.shape() == output.shape(), ErrorKind::shape, "backward: the gradient has shape ",
              seed.shape(), ", the output ", output.shape());
        check(seed.device() == output.device(), ErrorKind::device, "backward: the gradient is on ",
              seed.device(), ", the output on ", output.device());
        return seed.dtype() == output.dtype() ? seed : cast(seed, output.dtype());
    }
    check(output.numel() == 1, ErrorKind::shape, "backward: the output has shape ", output.shape(),
          "; only a one-element output has an implied gradient, pass one");
    return implied_seed(output);
}

// Makes an engine the thread's running backward, and turns autocast off.
class [[nodiscard]] RunScope {
public:
    explicit RunScope(Running* engine) : previous_(current) { current = engine; }
    ~RunScope() { current = previous_; }
    RunScope(const RunScope&) = delete;
    RunScope& operator=(const RunScope&) = delete;

private:
    Running* previous_;
    NoAutocast plain_;
};

void Engine::run(const Tensors& outputs, const Tensors& grad_outputs) {
    try {
        propagate(outputs, grad_outputs);
    } catch (const std::exception& error) {
        if (watch_) watch_->abandon(error.what());
        throw;
    }
}

void Engine::propagate(const Tensors& outputs, const Tensors& grad_outputs) {
    RunScope scope(this);
    if (targets_ && !parent_) find_paths(outputs);
    const auto go = [&] {
        if (BackwardObserver::any() && !targets_ && !inner_) {
            // Errors of the root gradients are thrown before observers are notified: observers on other
            // machines might wait for the end of this backward.
            for (std::size_t i = 0; i < outputs.size(); ++i)
                static_cast<void>(seed_for(outputs[i], grad_outputs, i));
            watch_ = std::make_unique<BackwardWatch>(outputs, create_graph_);
            watch_->begin();
        }
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            Tensor seed = seed_for(outputs[i], grad_outputs, i);
            send(edge_of(outputs[i]), std::move(seed));
        }
        Observers::tell([&](OpObserver& one) { one.backward_begins(outputs); });
        while (!heap_.empty()) visit_newest();
        for (auto& [leaf, gradient, scaled] : hooked_)
            accumulate(leaf, after_hooks(leaf, std::move(gradient)), scaled);
        run_target_hooks();
        if (watch_) watch_->end();
    };
    if (create_graph_) {
        EnableGrad scope_recording;
        go();
    } else {
        NoGrad scope_plain;
        go();
    }
}

std::vector<Target> targets_of(const Tensors& inputs) {
    std::vector<Target> targets;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        check(inputs[i].defined() && tracked(inputs[i]), ErrorKind::state, "grad: input ", i,
              " does not require grad; call set_requires_grad() before it is used");
        const Edge edge = edge_of(inputs[i]);
        targets.push_back({edge.leaf.impl(), edge.node.get(), edge.output, {}});
    }
    return targets;
}

}  // namespace

Running* running_backward() { return current; }

Tensors nested_backward(const Tensors& outputs, const Tensors& grad_outputs, const Tensors& inputs) {
    std::vector<Target> targets = targets_of(inputs);
    Engine(&targets, false, false, current).run(outputs, grad_outputs);
    Tensors result;
    for (Target& t : targets) result.push_back(std::move(t.gradient));
    return result;
}

namespace autograd {

Tensors grad(const Tensors& outputs, const Tensors& inputs, const GradOptions& options) {
    check(options.grad_outputs.empty() || options.grad_outputs.size() == outputs.size(), ErrorKind::value,
          "grad: ", options.grad_outputs.size(), " grad_outputs for ", outputs.size(), " outputs");
    std::vector<Target> targets = targets_of(inputs);
    Engine(&targets, options.create_graph, options.retain_graph || options.create_graph, nullptr)
        .run(outputs, options.grad_outputs);
    Tensors result;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        // The same tensor may be listed twice; its gradient is collected in the first of them.
        for (std::size_t j = 0; j < i && !targets[i].gradient.defined(); ++j)
            if (targets[j].leaf == targets[i].leaf && targets[j].node == targets[i].node &&
                targets[j].output == targets[i].output)
                targets[i].gradient = targets[j].gradient;
        check(targets[i].gradient.defined() || options.allow_unused, ErrorKind::state,
              "grad: no output depends on input ", i, "; pass allow_unused = true if that is meant");
        result.push_back(targets[i].gradient);
    }
    return result;
}

void backward(const Tensors& outputs, const GradOptions& options) {
    check(options.grad_outputs.empty() || options.grad_outputs.size() == outputs.size(), ErrorKind::value,
          "backward: ", options.grad_outputs.size(), " grad_outputs for ", outputs.size(), " outputs");
    Engine(nullptr, options.create_graph, options.retain_graph || options.create_graph, nullptr)
        .run(outputs, options.grad_outputs);
}

}  // namespace autograd

void Tensor::backward() const { autograd::backward({*this}); }

void Tensor::backward(const BackwardOptions& options) const {
    autograd::backward({*this},
                       {.grad_outputs = options.gradient.defined() ? Tensors{options.gradient} : Tensors{},
                        .retain_graph = options.retain_graph,
                        .create_graph = options.create_graph});
}

}  // namespace mezzo
