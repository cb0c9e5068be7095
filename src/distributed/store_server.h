// The store: rendezvous of the ranks of a run. It also detects which of them have ended. No tensor goes
// through it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/socket.h"
#include "distributed/store_messages.h"

namespace mezzo::distributed {

struct StoreOptions {
    int size = 1;        // number of ranks
    std::string run;     // distinguishes this run from others at the same address
    std::string holder;  // the holder of the store, for messages
    // called with the names of ranks that keep others waiting
    std::function<void(const std::string&)> note = nullptr;
    // each with as many ranks; all but node 0 report their processes to the store, too
    int nodes = 1;
    int starts = 0;  // of the run, before this one
};

// Runs on its own thread. Sends the first cause of a failure to all ranks.
class StoreServer {
public:
    StoreServer(Socket listening, StoreOptions options);
    ~StoreServer();  // calls close()
    StoreServer(const StoreServer&) = delete;
    StoreServer& operator=(const StoreServer&) = delete;

    int port() const { return port_; }
    // Finds the cause of a failure, if there is one in the ranks' messages or in how their processes have
    // ended, notifies the ranks that the store closes in order, and stops. cause() and the other queries stay
    // valid.
    void close();
    // Called by the launcher when a rank's process has ended; `how` is "" for exit code 0. Breaks the group
    // unless the rank has left in order.
    void process_ended(int rank, const std::string& how);
    std::string cause() const;               // "" unless the group is broken
    int culprit() const;                     // the rank that the cause is about, or -1
    std::uint64_t calls_of(int rank) const;  // collective calls that the rank has begun, as far as known
    std::vector<int> missing_nodes() const;  // nodes that have not joined yet
    bool has_other_nodes() const;            // whether any are connected

private:
    using Clock = std::chrono::steady_clock;
    struct Rank {
        bool joined = false, left = false, gone = false, has_set = false;
        std::string host, processors;
        std::uint64_t process = 0, token = 0, started = 0, finished = 0;
        std::string ending;                      // how the process ended, in the launcher's words
        std::optional<Clock::time_point> ended;  // when the launcher reported it
        std::optional<Clock::time_point> away;   // since its connection ended before the group was complete
        double timeout = 0;                      // s
        Clock::time_point since;                 // it waits in call `started`
    };
    struct Connection {
        explicit Connection(Socket s) : socket(std::move(s)), since(Clock::now()) {}
        Socket socket;
        std::string received, sent;  // bytes to take or to send
        int rank = -1;               // -1 before hello
        int node = -1;               // the node, for a mezzo-run; otherwise -1
        bool ended = false;
        Clock::time_point since;
        std::vector<std::string> wanted;  // keys
    };
    struct Hello {
        std::string version, run, host;
        std::uint64_t size = 0, rank = 0, process = 0, token = 0;
    };
    struct Node {
        bool here = false, gone = false;
        std::string title;  // of its mezzo-run
    };
    struct NodeHello {
        std::string version, host;
        std::uint64_t nodes = 0, ranks = 0, node = 0, process = 0;
    };
    struct Suspicion {
        Clock::time_point due;
        std::string words;
    };

    void serve();
    bool poll_once();
    void read(Connection& from);
    void take(Connection& from, Message message);
    void hello(Connection& from, Message& message);
    bool comes_again(const Hello& hello) const;
    bool is_namesake(const Hello& hello) const;
    std::string refusal(const Hello& hello, bool& look_on) const;
    bool all_joined() const;
    void complete();
    // store_nodes.cpp
    void node_hello(Connection& from, Message& message);
    std::string node_refusal(const NodeHello& hello, bool& look_on) const;
    bool all_nodes_met() const;
    void welcome_nodes();
    void refuse_waiting_nodes();
    void take_from_node(const Connection& from, Message& message);
    void node_ended(int node);
    int ranks_of_a_node() const { return options_.size / options_.nodes; }

    void answer_gets();
    void progress(Rank& rank, std::uint64_t started, std::uint64_t finished);
    void ended(Connection& from);
    void gone(std::size_t rank);
    void look_at_the_clock();
    void look_for_leavers();
    Message farewell() const;
    void look_for_processes(std::chrono::milliseconds patience);
    void look_a_last_time();
    void tell_of_waits();
    void break_with(const std::string& cause, int culprit = -1);
    void send(Connection& to, const Message& message);
    void broadcast(const Message& message);
    void refuse(Connection& from, const std::string& reason, bool look_on);
    void flush(Connection& to);
    std::string title(std::size_t rank) const;
    std::string late_ranks(std::uint64_t call) const;
    std::string missing_ranks() const;

    mutable std::mutex mutex_;  // guards all members below except the thread
    const StoreOptions options_;
    Socket listening_;
    const int port_;
    int wake_[2] = {-1, -1};
    bool stopping_ = false;
    std::list<Connection> connections_;
    std::vector<Rank> ranks_;
    std::vector<Node> nodes_;
    std::map<std::string, std::string> values_;
    std::vector<Suspicion> suspicions_;
    std::string cause_, pending_note_;
    int culprit_ = -1;
    std::uint64_t noted_ = 0;  // the call of the last notice
    bool ready_ = false;
    std::thread thread_;
};

}  // namespace mezzo::distributed
