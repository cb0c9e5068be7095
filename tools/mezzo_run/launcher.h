// A run: its starts, and of each the store, processes, their output and their end.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/store_server.h"
#include "tools/mezzo_run/node_zero.h"
#include "tools/mezzo_run/ranks.h"

namespace mezzo_run {

struct Options {
    int processes = 1;  // on this machine
    int nodes = 1, node = 0;
    std::string master;  // host:port of the store, which node 0 holds; empty on a single node
    double wait = 300;   // s, for the mezzo-run of the other nodes
    double grace = 30;   // s
    int restarts = 0;    // at most, each after a failure
    bool prefix = true;
    std::vector<std::string> command;
};

// One start of all ranks.
class Launcher {
public:
    // restart: how many starts there were before, as far as this node knows. Ranks of those cannot join this one.
    Launcher(const Options& options, int restart);
    ~Launcher();
    Launcher(const Launcher&) = delete;
    Launcher& operator=(const Launcher&) = delete;

    // Until all processes have ended. The exit code: that of the first that did not end with 0.
    int run();
    // After run(): whether a rank has failed, and nobody has asked the ranks to end.
    bool failed() const;

private:
    using Clock = std::chrono::steady_clock;

    void open_store();
    bool meet();
    std::string awaited();
    void start_all();
    Command command_of(int local_rank) const;
    void work();
    void reap();
    void await_other_nodes();
    bool forward_signals();
    void kill_late_ones();
    void signal_all(int number);
    bool any_running() const;
    void note_cause();
    void summarize();

    const Options& options_;
    int restart_;
    std::string address_, run_;
    std::unique_ptr<mezzo::distributed::StoreServer> store_;  // of node 0
    NodeZero node_zero_;                                      // which the others talk to
    std::vector<Process> processes_;
    std::vector<Lines> lines_;
    std::optional<std::size_t> first_;  // of processes_, that failed
    std::optional<Clock::time_point> kill_at_;
    int asked_ = 0;       // to end, by this signal
    bool noted_ = false;  // the cause, and whom it is about
    std::string cause_;
    int culprit_ = -1;
    int signals_ = -1;  // a descriptor that tells of signals
};

// Starts all ranks, again after each failure as long as there are restarts left. The exit code of the last start.
int run(const Options& options);

}  // namespace mezzo_run
