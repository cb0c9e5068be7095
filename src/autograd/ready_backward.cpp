#include "autograd/ready_backward.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "autograd/engine.h"
#include "autograd/extra.h"

namespace mezzo {

namespace {

// Order in which the leaves of a graph become ready: that of descending sequence numbers.
class Readiness final : public BackwardListener {
public:
    Readiness(const Tensor& loss, const GradientReady& ready) : ready_(ready) { walk(loss); }
    void begin() override {}
    void visiting(const Node&) override {}
    // Only an opaque node delivers to a leaf that the walk has not found.
    void delivering(const Tensor& leaf) override {
        if (!sequence_.emplace(leaf.impl(), last_opaque_).second) return;
        waiting_.push_back({last_opaque_, leaf});
        std::push_heap(waiting_.begin(), waiting_.end());
    }
    void visited(std::uint64_t next) override {
        while (!waiting_.empty() && waiting_.front().sequence > next) report();
    }
    void end() override {
        while (!waiting_.empty()) report();
    }
    void failed(std::string_view) noexcept override {}

private:
    struct Leaf {
        std::uint64_t sequence;  // of the node after which it is ready; 0: the end
        Tensor tensor;
        bool operator<(const Leaf& other) const { return sequence < other.sequence; }
    };
    void walk(const Tensor& loss);
    void report() {
        std::pop_heap(waiting_.begin(), waiting_.end());
        const Tensor leaf = waiting_.back().tensor;
        waiting_.pop_back();
        ready_(leaf);
    }

    const GradientReady& ready_;
    std::vector<Leaf> waiting_;  // a heap
    std::unordered_map<const TensorImpl*, std::uint64_t> sequence_;
    std::uint64_t last_opaque_ = ~std::uint64_t(0);  // the opaque node that is visited last, if there is any
};

void Readiness::walk(const Tensor& loss) {
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> stack;
    const auto follow = [&](const Edge& edge, std::uint64_t from) {
        if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
        if (!edge.leaf.defined()) return;
        const std::uint64_t own = leaf_hooks(edge.leaf) ? 0 : from;
        const auto [at, fresh] = sequence_.emplace(edge.leaf.impl(), own);
        if (fresh) waiting_.push_back({own, edge.leaf});
        at->second = std::min(at->second, own);
    };
    if (tracked(loss)) follow(edge_of(loss), ~std::uint64_t(0));
    while (!stack.empty()) {
        const Node* const node = stack.back();
        stack.pop_back();
        if (is_opaque(*node)) last_opaque_ = std::min(last_opaque_, node->sequence);
        for (const Edge& edge : node->edges) follow(edge, node->sequence);
    }
    for (Leaf& leaf : waiting_) leaf.sequence = std::min(sequence_[leaf.tensor.impl()], last_opaque_);
    std::make_heap(waiting_.begin(), waiting_.end());
}

}  // namespace

void backward_until_ready(const Tensor& loss, const GradientReady& ready) {
    check(thread_state.engine == nullptr, ErrorKind::state,
          "backward: gradients cannot be released inside of another backward pass");
    Engine engine(nullptr, false, false, nullptr);
    engine.listen(std::make_unique<Readiness>(loss, ready));
    engine.run({loss}, {});
}

}  // namespace mezzo
