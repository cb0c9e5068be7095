// The store's messages with the mezzo-run of the other nodes.
#include <algorithm>

#include "distributed/store_server.h"
#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo::distributed {

std::vector<int> StoreServer::missing_nodes() const {
    const std::lock_guard lock(mutex_);
    std::vector<int> missing;
    for (std::size_t n = 0; n < nodes_.size(); ++n)
        if (!nodes_[n].here) missing.push_back(int(n));
    return missing;
}

bool StoreServer::has_other_nodes() const {
    const std::lock_guard lock(mutex_);
    return std::any_of(nodes_.begin() + 1, nodes_.end(), [](const Node& n) { return n.here && !n.gone; });
}

void StoreServer::node_hello(Connection& from, Message& message) {
    check(message.text() == node_greeting, ErrorKind::backend, "store: another greeting");
    NodeHello hello;
    hello.version = message.text();
    hello.nodes = message.number();
    hello.ranks = message.number();
    hello.node = message.number();
    hello.host = message.text();
    hello.process = message.number();
    bool look_on = false;
    const std::string reason = node_refusal(hello, look_on);
    if (!reason.empty()) return refuse(from, reason, look_on);
    from.node = int(hello.node);
    nodes_[hello.node] = {true, false,
                          "mezzo-run (host " + hello.host + ", pid " + std::to_string(hello.process) + ")"};
    if (all_nodes_met()) welcome_nodes();
}

bool StoreServer::all_nodes_met() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.here; });
}

// Welcomes all nodes at once, when the last one has come, so that none starts ranks that would wait for
// another node.
void StoreServer::welcome_nodes() {
    for (Connection& to : connections_)
        if (to.node >= 0)
            send(to, Message(static_cast<std::uint8_t>(FromStore::welcome))
                         .add(store_greeting)
                         .add(options_.holder)
                         .add(options_.run)
                         .add(std::uint64_t(options_.starts)));
}

// Refuses nodes that wait for the others when the run can no longer begin.
void StoreServer::refuse_waiting_nodes() {
    if (all_nodes_met()) return;
    for (Connection& to : connections_) {
        if (to.node < 0 || to.ended) continue;
        send(to, Message(static_cast<std::uint8_t>(FromStore::refused))
                     .add(store_greeting)
                     .add(std::uint64_t(0))
                     .add(cause_));
        to.ended = true;
    }
}

// Returns why a node is refused, like refusal() for a rank. A node that has joined before, or that comes
// after the run has failed, belongs to the next start, which begins once this one has ended.
std::string StoreServer::node_refusal(const NodeHello& hello, bool& look_on) const {
    const std::string who = "node " + std::to_string(hello.node);
    look_on = true;
    if (hello.nodes != nodes_.size() || hello.ranks != std::uint64_t(ranks_of_a_node()) ||
        hello.node >= nodes_.size())
        return "node 0 is one of " + std::to_string(nodes_.size()) + " nodes with " +
               std::to_string(ranks_of_a_node()) + " processes each, this is " + who + " of " +
               std::to_string(hello.nodes) + " with " + std::to_string(hello.ranks) + " each";
    if (nodes_[hello.node].here) return who + " has come already: " + nodes_[hello.node].title;
    if (!cause_.empty()) return "node 0's run has failed: " + cause_;
    look_on = false;
    if (hello.version != mezzo::version())
        return who + " uses mezzo " + hello.version + ", node 0 " + mezzo::version() + "; use one version";
    return "";
}

void StoreServer::take_from_node(const Connection& from, Message& message) {
    check(message.kind() == std::uint8_t(FromRank::process_ended), ErrorKind::backend,
          "store: a message of kind ", int(message.kind()), " from a node");
    const std::uint64_t rank = message.number();
    check(rank / std::uint64_t(ranks_of_a_node()) == std::uint64_t(from.node), ErrorKind::backend,
          "store: node ", from.node, " does not have rank ", rank);
    ranks_[rank].ending = message.text();
    ranks_[rank].ended = Clock::now();
}

// Handles the end of a node's mezzo-run: its running ranks have no supervisor, and the store would not learn
// how they end.
void StoreServer::node_ended(int node) {
    if (!all_nodes_met()) {  // it has started nothing; it, or another, may come again
        nodes_[std::size_t(node)] = {};
        return;
    }
    nodes_[std::size_t(node)].gone = true;
    const int first = node * ranks_of_a_node(), last = first + ranks_of_a_node() - 1;
    const bool done = std::all_of(ranks_.begin() + first, ranks_.begin() + last + 1,
                                  [](const Rank& r) { return r.left || r.ended; });
    if (done) return;
    break_with(nodes_[std::size_t(node)].title + " is gone; it had started " +
               (first == last ? "rank " + std::to_string(first)
                              : "ranks " + std::to_string(first) + " to " + std::to_string(last)));
}

}  // namespace mezzo::distributed
