#include "tests/emulation/graph.h"

#include <algorithm>

#include "mezzo/error.h"
#include "tests/emulation/engine.h"

namespace mezzo::emulation {
namespace {

void append(std::vector<std::size_t>& to, const std::vector<std::size_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

// Which of the two branches goes on, if both can.
int preferred(BranchOrder order, int last, std::size_t next_main, std::size_t next_side) {
    switch (order) {
        case BranchOrder::main_first:
            return 0;
        case BranchOrder::side_first:
            return 1;
        case BranchOrder::alternating:
            return 1 - last;
        case BranchOrder::queued:
            break;
    }
    return next_side < next_main ? 1 : 0;
}

}  // namespace

void Graph::add(std::function<void()> work, int branch) {
    check(branch == 0 || side_captured_, ErrorKind::backend,
          "cuda: work on a stream that takes no part in the capture");
    nodes_.push_back({std::move(work), branch, ends_[branch]});
    ends_[branch] = {nodes_.size() - 1};
    if (branch == 1) side_joined_ = false;
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
    return side_joined_ || options.loses_joins ? nullptr : "cudaErrorStreamCaptureUnjoined";
}

void Graph::run(BranchOrder order) const {
    std::vector<std::size_t> queues[2];
    for (std::size_t i = 0; i < nodes_.size(); ++i) queues[nodes_[i].branch].push_back(i);
    std::vector<char> done(nodes_.size());
    std::size_t at[2] = {};
    const auto ready = [&](int branch) {
        if (at[branch] == queues[branch].size()) return false;
        const Node& node = nodes_[queues[branch][at[branch]]];
        return std::all_of(node.after.begin(), node.after.end(), [&](std::size_t i) { return done[i] != 0; });
    };
    for (int branch = 0; ready(0) || ready(1);) {
        branch = ready(0) && ready(1) ? preferred(order, branch, queues[0][at[0]], queues[1][at[1]])
                                      : (ready(1) ? 1 : 0);
        const std::size_t node = queues[branch][at[branch]++];
        run_or_capture(nodes_[node].work);
        done[node] = 1;
    }
    check(at[0] + at[1] == nodes_.size(), ErrorKind::backend, "emulated graph: its work waits for itself");
}

}  // namespace mezzo::emulation
