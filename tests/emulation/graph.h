// A stream capture of the emulated device: work, and the order that streams and events give it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace mezzo::emulation {

// In which order a graph's branches run where nothing orders them. A GPU may do any of these, or both at
// once.
enum class BranchOrder { queued, main_first, side_first, alternating };

class Graph {
public:
    // On the main stream (0) or the side stream (1).
    void add(std::function<void()> work, int branch);
    void fork();
    void enter();
    void join();
    // What makes cudaStreamEndCapture fail, or null.
    const char* defect() const;
    void run(BranchOrder order) const;

private:
    struct Node {
        std::function<void()> work;
        int branch;
        std::vector<std::size_t> after;
    };
    std::vector<Node> nodes_;
    std::vector<std::size_t> ends_[2], fork_;  // what the next work of a stream, or of a fork, comes after
    bool side_captured_ = false, side_joined_ = true, invalid_ = false;
};

}  // namespace mezzo::emulation
