// Node 0's mezzo-run, which holds the store, as that of another node sees it.
#pragma once

#include <string>

#include "distributed/socket.h"

namespace mezzo_run {

class NodeZero {
public:
    // Who asks: which of how many nodes, each with so many ranks.
    struct Node {
        int nodes, node, ranks;
    };

    // Goes on with joining the run, for a second at most, and as long as the host's name takes to be looked up. False if that is to be tried again; reason() then says more, if more is known.
    // std::runtime_error if node 0 does not take this node.
    bool join(const std::string& host, int port, const Node& node);
    const std::string& reason() const { return reason_; }
    // After that: the run's name, and how many starts of it there were before.
    const std::string& run() const { return run_; }
    int starts() const { return starts_; }

    // From then on node 0 knows that this process runs no more. As long as it does not, the end of this object breaks the group.
    void process_ended(int rank, const std::string& how);
    // Sends what node 0 has not taken yet; waits for nothing.
    void flush();

private:
    void ask(const std::string& host, int port, const Node& node);
    bool take_answer(mezzo::distributed::Message answer);

    mezzo::distributed::Socket socket_;
    std::string received_, unsent_, reason_, run_;
    int starts_ = 0;
};

}  // namespace mezzo_run
