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
        if (known_.insert(leaf.impl()).second) late_.push_back(leaf);
    }
    void visited(std::uint64_t next) override {
        for (; passed_ < leaves_.size() && leaves_[passed_].sequence > next; ++passed_)
            ready_(leaves_[passed_].leaf);
        if (next < last_opaque_) report_late();
    }
    void end() override {
        for (; passed_ < leaves_.size(); ++passed_) ready_(leaves_[passed_].leaf);
        report_late();
    }
    void failed(std::string_view) noexcept override {}

private:
    struct Leaf {
        Tensor leaf;
        std::uint64_t sequence;  // of the node after which it is ready; 0: the end
    };
    void walk(const Tensor& loss);
    void report_late() {
        for (const Tensor& leaf : std::exchange(late_, {})) ready_(leaf);
    }

    const GradientReady& ready_;
    std::vector<Leaf> leaves_;
    std::unordered_set<const TensorImpl*> known_;
    Tensors late_;
    std::uint64_t last_opaque_ = ~std::uint64_t(0);  // the opaque node that is visited last, if there is any
    std::size_t passed_ = 0;
};

void Readiness::walk(const Tensor& loss) {
    std::unordered_set<const Node*> seen;
    std::unordered_map<const TensorImpl*, std::size_t> index;
    std::vector<const Node*> stack;
    const auto follow = [&](const Edge& edge, std::uint64_t from) {
        if (edge.node && seen.insert(edge.node.get()).second) stack.push_back(edge.node.get());
        if (!edge.leaf.defined()) return;
        const std::uint64_t sequence = leaf_hooks(edge.leaf) ? 0 : from;
        const auto [at, fresh] = index.emplace(edge.leaf.impl(), leaves_.size());
        if (fresh)
            leaves_.push_back({edge.leaf, sequence});
        else
            leaves_[at->second].sequence = std::min(leaves_[at->second].sequence, sequence);
    };
    if (tracked(loss)) follow(edge_of(loss), ~std::uint64_t(0));
    while (!stack.empty()) {
        const Node* const node = stack.back();
        stack.pop_back();
        if (is_opaque(*node)) last_opaque_ = std::min(last_opaque_, node->sequence);
        for (const Edge& edge : node->edges) follow(edge, node->sequence);
    }
    for (Leaf& leaf : leaves_) {
        leaf.sequence = std::min(leaf.sequence, last_opaque_);
        known_.insert(leaf.leaf.impl());
    }
    std::stable_sort(leaves_.begin(), leaves_.end(),
                     [](const Leaf& a, const Leaf& b) { return a.sequence > b.sequence; });
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
