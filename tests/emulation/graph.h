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
    // On the main stream (0), the side stream (1) or the communication stream (2).
    void add(std::function<void()> work, int branch);
    void fork();
    void enter();
    void join();
    // What has been queued on a stream, and that a stream's next work comes after it.
    struct Point {
        int branch = 0;
        std::vector<std::size_t> nodes = {};
    };
    Point point(int branch) const { return {branch, ends_[branch]}; }
    void hold(int branch, const Point& point);
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
    static constexpr int branches = 3;
    int next_branch(BranchOrder order, int last, const bool (&ready)[branches],
                    const std::size_t (&next)[branches]) const;

    std::vector<std::size_t> ends_[branches],
        fork_;  // what the next work of a stream, or of a fork, comes after
    bool side_captured_ = false, side_joined_ = true, invalid_ = false;
    bool communication_captured_ = false, communication_joined_ = true;
};

}  // namespace mezzo::emulation
