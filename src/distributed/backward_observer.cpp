#include "distributed/backward_observer.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <unordered_set>

#include "autograd/extra.h"

namespace mezzo::distributed {

namespace {

std::atomic<int> observers_alive{0};

std::unique_ptr<BackwardListener> make_tracker(const Tensors& outputs, bool create_graph) {
    if (observers_alive.load(std::memory_order_relaxed) == 0) return nullptr;
    return std::make_unique<ReadinessTracker>(outputs, create_graph);
}

constexpr std::size_t none = ~std::size_t(0);

GradientSlot::Link link_of(const Tensor& leaf) {
    return leaf->grad_meta ? leaf->grad_meta->gradient.find<BackwardObserver>() : GradientSlot::Link{};
}

BackwardObserver& as_observer(const Ref<GradientHook>& hook) { return static_cast<BackwardObserver&>(*hook); }

}  // namespace

BackwardObserver::BackwardObserver() {
    observers_alive.fetch_add(1, std::memory_order_relaxed);
    make_backward_listener.store(make_tracker, std::memory_order_relaxed);
}

BackwardObserver::~BackwardObserver() { observers_alive.fetch_sub(1, std::memory_order_relaxed); }

ReadinessTracker::ReadinessTracker(const Tensors& outputs, bool create_graph) : create_graph_(create_graph) {
    walk(outputs);
}

// Walks over every node that can get a gradient. A leaf is ready after the oldest node with an edge to it; a
// leaf with hooks at the end, because the engine runs the hooks on the total.
void ReadinessTracker::walk(const Tensors& outputs) {
    std::unordered_set<const Node*> seen;
    std::unordered_map<const TensorImpl*, std::size_t> known;  // its event
    std::vector<const Node*> stack;
    std::size_t met = 0;
    const auto follow = [&](const Edge& edge, std::uint64_t from) {
        if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
        const GradientSlot::Link link = edge.leaf.defined() ? link_of(edge.leaf) : GradientSlot::Link{};
        if (!link.hook) return;
        BackwardObserver* const observer = &as_observer(link.hook);
        const std::uint64_t sequence = leaf_hooks(edge.leaf) ? 0 : from;
        const auto [at, fresh] = known.emplace(edge.leaf.impl(), events_.size());
        if (fresh) {
            events_.push_back({sequence, met++, observer, link.index});
            add_observer(observer);
        } else if (sequence < events_[at->second].sequence) {
            events_[at->second].sequence = sequence;
            events_[at->second].met = met++;
        }
    };
    for (const Tensor& y : outputs)
        if (tracked(y)) follow(edge_of(y), none);
    while (!stack.empty()) {
        const Node* const node = stack.back();
        stack.pop_back();
        if (is_opaque(*node)) {
            events_.push_back({node->sequence, met++});
            opaque_.push_back(node->sequence);
        }
        for (const Edge& edge : node->edges) follow(edge, node->sequence);
    }
    std::sort(opaque_.begin(), opaque_.end(), std::greater<>());
    std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
        return a.sequence != b.sequence ? a.sequence > b.sequence : a.met < b.met;
    });
}

void ReadinessTracker::add_observer(BackwardObserver* observer) {
    const Ref<GradientHook> hook(observer);
    if (std::find(observers_.begin(), observers_.end(), hook) == observers_.end()) observers_.push_back(hook);
}

std::size_t ReadinessTracker::number_of(std::uint64_t sequence) const {
    return std::size_t(std::lower_bound(opaque_.begin(), opaque_.end(), sequence, std::greater<>()) -
                       opaque_.begin());
}

void ReadinessTracker::sort_observers(std::size_t from) {
    std::stable_sort(observers_.begin() + std::ptrdiff_t(from), observers_.end(),
                     [](const Ref<GradientHook>& a, const Ref<GradientHook>& b) {
                         return as_observer(a).number() < as_observer(b).number();
                     });
}

void ReadinessTracker::begin() {
    begun_ = true;
    sort_observers(0);
    planned_ = observers_.size();
    for (const Ref<GradientHook>& hook : observers_) {
        BackwardPlan plan{.opaque = opaque_.size(), .create_graph = create_graph_, .alone = planned_ == 1};
        for (const Event& event : events_)
            if (event.observer == hook.get()) plan.order.push_back(event.place);
        as_observer(hook).begin(plan);
    }
}

void ReadinessTracker::visiting(const Node& node) {
    if (opaque_.empty() || !is_opaque(node)) return;
    running_ = number_of(node.sequence);
    for (const Ref<GradientHook>& hook : observers_) as_observer(hook).opaque_begins(running_);
}

void ReadinessTracker::visited(std::uint64_t next) {
    running_ = none;
    for (; passed_ < events_.size() && events_[passed_].sequence > next; ++passed_) {
        const Event& event = events_[passed_];
        if (event.observer != nullptr) {
            event.observer->finished(event.place);
        } else {
            for (const Ref<GradientHook>& hook : observers_)
                as_observer(hook).opaque_finished(number_of(event.sequence));
        }
    }
}

// Only an opaque node delivers to a leaf that the walk has not found.
void ReadinessTracker::delivering(const Tensor& leaf) {
    const GradientSlot::Link link = opaque_.empty() ? GradientSlot::Link{} : link_of(leaf);
    if (!link.hook) return;
    BackwardObserver* const observer = &as_observer(link.hook);
    const std::size_t before = observers_.size();
    add_observer(observer);
    if (observers_.size() == before) return;
    observer->begin({.opaque = opaque_.size(), .create_graph = create_graph_, .alone = false});
    for (std::size_t i = 0; i < opaque_.size(); ++i)
        if (i < running_) observer->opaque_finished(i);
    if (running_ != none) observer->opaque_begins(running_);
}

void ReadinessTracker::end() {
    visited(0);
    for (; passed_ < events_.size(); ++passed_) events_[passed_].observer->finished(events_[passed_].place);
    sort_observers(planned_);
    for (const Ref<GradientHook>& hook : observers_) as_observer(hook).end();
    over_ = true;
}

void ReadinessTracker::failed(std::string_view message) noexcept {
    if (!begun_ || over_) return;
    over_ = true;
    for (const Ref<GradientHook>& hook : observers_) as_observer(hook).abandon(message);
}

ReadinessTracker::~ReadinessTracker() { failed(""); }

}  // namespace mezzo::distributed
