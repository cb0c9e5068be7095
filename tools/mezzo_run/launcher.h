// Starts and restarts a run: its store, its processes, their output and their end.
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
    double wait = 300;   // s, for the mezzo-run of other nodes
    double grace = 30;   // s
    int restarts = 0;    // at most, one after each failure
    bool prefix = true;
    std::vector<std::string> command;
};

// One start of all ranks.
class Launcher {
public:
    // `restart` is the number of earlier starts that this node knows of. Ranks of those starts cannot join
    // this one.
    Launcher(const Options& options, int restart);
    ~Launcher();
    Launcher(const Launcher&) = delete;
    Launcher& operator=(const Launcher&) = delete;

    // Runs until all processes have ended. Returns the exit code of the first process that did not end with
    // 0, or 0.
    int run();
    // After run(): whether a rank has failed without a request to end.
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
    NodeZero node_zero_;                                      // connection to node 0, on other nodes
    std::vector<Process> processes_;
    std::vector<PrefixedOutput> lines_;
    std::optional<std::size_t> first_;  // index of the first process that failed
    std::optional<Clock::time_point> kill_at_;
    int asked_ = 0;       // signal that requested the end; 0: none
    bool noted_ = false;  // cause_ and culprit_ are set
    std::string cause_;
    int culprit_ = -1;
    // a descriptor from which signals are read
    int signals_ = -1;
};

// Starts all ranks, and again after each failure while restarts are left. Returns the exit code of the last
// start.
int run(const Options& options);

}  // namespace mezzo_run
