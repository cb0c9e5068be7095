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
    Readiness(const char* op, const Tensor& loss, const GradientReady& ready) : op_(op), ready_(ready) {
        walk(loss);
    }
    void begin() override {}
    void visiting(const Node&) override {}
    // Only an opaque node delivers to a leaf that the walk has not found.
    void delivering(const Tensor& leaf) override {
        if (!sequence_.emplace(leaf.impl(), last_opaque_).second) return;
        refuse_reduced(leaf);
        waiting_.push_back({last_use(leaf), leaf});
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
    void note_reads(const Node& node);
    void refuse_reduced(const Tensor& leaf) const;
    // The node after which no gradient comes to the leaf, and no node reads its memory.
    std::uint64_t last_use(const Tensor& leaf) const;
    void report() {
        std::pop_heap(waiting_.begin(), waiting_.end());
        const Tensor leaf = waiting_.back().tensor;
        waiting_.pop_back();
        ready_(leaf);
    }

    const char* op_;
    const GradientReady& ready_;
    std::vector<Leaf> waiting_;                                      // a heap
    std::unordered_map<const TensorImpl*, std::uint64_t> sequence_;  // of the oldest node with an edge to it
    std::unordered_map<const Storage*, std::uint64_t> reader_;       // the oldest node that has saved it
    std::uint64_t last_opaque_ = ~std::uint64_t(0);  // the opaque node that is visited last, if there is any
};

void Readiness::refuse_reduced(const Tensor& leaf) const {
    check(!leaf->grad_meta->gradient.reduced(), ErrorKind::state, op_,
          ": the graph reaches parameters of a DataParallel, whose gradients are reduced between processes; "
          "call backward() and step()");
}

void Readiness::note_reads(const Node& node) {
    const auto note = [&](In saved) {
        for (const Tensor& x : saved) {
            if (!x.defined()) continue;
            std::uint64_t& oldest = reader_.emplace(x->storage.get(), node.sequence).first->second;
            oldest = std::min(oldest, node.sequence);
        }
    };
    note(node.saved_inputs);
    note(node.saved_outputs);
    if (node.extra && node.extra->function) note(node.extra->function->saved());
}

std::uint64_t Readiness::last_use(const Tensor& leaf) const {
    if (leaf_hooks(leaf)) return 0;
    const std::uint64_t last = std::min(sequence_.at(leaf.impl()), last_opaque_);
    const auto reader = reader_.find(leaf->storage.get());
    return reader == reader_.end() ? last : std::min(last, reader->second);
}

void Readiness::walk(const Tensor& loss) {
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> stack;
    const auto follow = [&](const Edge& edge, std::uint64_t from) {
        if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
        if (!edge.leaf.defined()) return;
        const auto [at, fresh] = sequence_.emplace(edge.leaf.impl(), from);
        at->second = std::min(at->second, from);
        if (!fresh) return;
        refuse_reduced(edge.leaf);
        waiting_.push_back({0, edge.leaf});
    };
    if (tracked(loss)) follow(edge_of(loss), ~std::uint64_t(0));
    while (!stack.empty()) {
        const Node* const node = stack.back();
        stack.pop_back();
        if (is_opaque(*node)) last_opaque_ = std::min(last_opaque_, node->sequence);
        note_reads(*node);
        for (const Edge& edge : node->edges) follow(edge, node->sequence);
    }
    for (Leaf& leaf : waiting_) leaf.sequence = last_use(leaf.tensor);
    std::make_heap(waiting_.begin(), waiting_.end());
}

}  // namespace

void backward_until_ready(const char* op, const Tensor& loss, const GradientReady& ready) {
    check(thread_state.engine == nullptr, ErrorKind::state, op,
          ": it runs a backward pass of its own, and is called inside of another one");
    Engine engine(nullptr, false, false, nullptr);
    engine.listen(std::make_unique<Readiness>(op, loss, ready));
    engine.run({loss}, {});
}

}  // namespace mezzo
