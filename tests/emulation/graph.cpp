#include "tests/emulation/graph.h"

#include <algorithm>

#include "mezzo/error.h"
#include "tests/emulation/engine.h"

namespace mezzo::emulation {
namespace {

void append(std::vector<std::size_t>& to, const std::vector<std::size_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

// Which of the branches that can go on does.
int Graph::next_branch(BranchOrder order, int last, const bool (&ready)[branches],
                       const std::size_t (&next)[branches]) const {
    constexpr int by_main[] = {0, 1, 2}, by_side[] = {2, 1, 0};
    const int in_turn[] = {(last + 1) % branches, (last + 2) % branches, last};
    const int* const wish = order == BranchOrder::main_first    ? by_main
                            : order == BranchOrder::side_first  ? by_side
                            : order == BranchOrder::alternating ? in_turn
                                                                : nullptr;
    int chosen = -1;
    for (int i = 0; i < branches; ++i) {
        const int branch = wish != nullptr ? wish[i] : i;
        if (!ready[branch]) continue;
        if (wish != nullptr) return branch;
        if (chosen < 0 || next[branch] < next[chosen]) chosen = branch;
    }
    return chosen;
}

void Graph::add(std::function<void()> work, int branch) {
    check(branch == 0 || (branch == 1 ? side_captured_ : communication_captured_), ErrorKind::backend,
          "cuda: work on a stream that takes no part in the capture");
    nodes_.push_back({std::move(work), branch, ends_[branch]});
    ends_[branch] = {nodes_.size() - 1};
    if (branch == 1) side_joined_ = false;
    if (branch == 2) communication_joined_ = false;
}

void Graph::hold(int branch, const Point& point) {
    check(branch != 0 || point.branch != 2 || communication_captured_, ErrorKind::backend,
          "cuda: cudaStreamWaitEvent failed with cudaErrorStreamCaptureIsolation");
    append(ends_[branch], point.nodes);
    if (branch == 2) communication_captured_ = true;
    if (branch == 0 && point.branch == 2 && point.nodes == ends_[2]) communication_joined_ = true;
}

void Graph::fork() { fork_ = ends_[0]; }

void Graph::enter() {
    append(ends_[1], fork_);
    side_captured_ = true;
}

void Graph::join() {
    invalid_ |= !side_captured_;
    check(side_captured_, ErrorKind::backend,
          "cuda: cudaStreamWaitEvent of a join failed with cudaErrorStreamCaptureIsolation");
    if (options.loses_joins) return;
    append(ends_[0], ends_[1]);
    side_joined_ = true;
}

const char* Graph::defect() const {
    if (invalid_) return "cudaErrorStreamCaptureInvalidated";
    const bool joined = side_joined_ && communication_joined_;
    return joined || options.loses_joins ? nullptr : "cudaErrorStreamCaptureUnjoined";
}

void Graph::run(BranchOrder order) const {
    std::vector<std::size_t> queues[branches];
    for (std::size_t i = 0; i < nodes_.size(); ++i) queues[nodes_[i].branch].push_back(i);
    std::vector<char> done(nodes_.size());
    std::size_t at[branches] = {}, total = 0;
    for (int last = 0;; ++total) {
        bool ready[branches] = {};
        std::size_t next[branches] = {};
        for (int branch = 0; branch < branches; ++branch) {
            if (at[branch] == queues[branch].size()) continue;
            next[branch] = queues[branch][at[branch]];
            const std::vector<std::size_t>& after = nodes_[next[branch]].after;
            ready[branch] =
                std::all_of(after.begin(), after.end(), [&](std::size_t i) { return done[i] != 0; });
        }
        const int branch = next_branch(order, last, ready, next);
        if (branch < 0) break;
        last = branch;
        ++at[branch];
        run_or_capture(nodes_[next[branch]].work);
        done[next[branch]] = 1;
    }
    check(total == nodes_.size(), ErrorKind::backend, "emulated graph: its work waits for itself");
}

}  // namespace mezzo::emulation
