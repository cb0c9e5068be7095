// Another node's connection to node 0's mezzo-run, which holds the store.
#pragma once

#include <string>

#include "distributed/socket.h"

namespace mezzo_run {

class NodeZero {
public:
    // The node that connects: its number, the number of nodes, and the ranks of each.
    struct Node {
        int nodes, node, ranks;
    };

    // Continues to join the run, for a second at most plus the lookup of the host's name. Returns false if it
    // should be tried again; reason() may then have a reason. Throws std::runtime_error if node 0 refuses
    // this node.
    bool join(const std::string& host, int port, const Node& node);
    const std::string& reason() const { return reason_; }
    // After join(): the run's name, and its number of earlier starts.
    const std::string& run() const { return run_; }
    int starts() const { return starts_; }

    // Reports to node 0 that this process has ended. If node 0 counts a rank of this node as running, the end
    // of this object breaks the group.
    void process_ended(int rank, const std::string& how);
    // Sends what node 0 has not taken yet, without waiting.
    void flush();

private:
    void ask(const std::string& host, int port, const Node& node);
    bool take_answer(mezzo::distributed::Message answer);

    mezzo::distributed::Socket socket_;
    std::string received_, unsent_, reason_, run_;
    int starts_ = 0;
};

}  // namespace mezzo_run
