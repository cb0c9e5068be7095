#include "tools/mezzo_run/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <stdexcept>

#include "samples/program.h"

namespace mezzo_run {
namespace {

constexpr int tick = 100, meeting_tick = 20;  // ms
constexpr double silence = 10;                // s: longer waits are logged

// Returns a random name, so that no process of another run is taken for a rank.
std::string random_name() {
    std::random_device source;
    return fmt::format("{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
}

std::chrono::steady_clock::duration seconds(double count) {
    return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(count));
}

// Blocks the signals, so that they are read from the descriptor. The processes start without blocked signals.
int open_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signal(SIGPIPE, SIG_IGN);
    // if it is ignored, as a parent may leave it, the ends of the ranks would not be reported
    signal(SIGCHLD, SIG_DFL);
    const int descriptor = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (descriptor < 0) throw std::runtime_error("signals cannot be read");
    return descriptor;
}

void tell(const std::string& text) { program::tell("mezzo-run: " + text + "\n"); }

// Splits "host:port"; an IPv6 address is in brackets.
std::pair<std::string, int> split(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    int port = 0;
    if (colon == std::string::npos || colon == 0 ||
        !program::parse_number(std::string_view(address).substr(colon + 1), port) || port < 1 || port > 65535)
        throw std::runtime_error(fmt::format("--master: \"{}\" is not host:port", address));
    std::string host = address.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    return {host, port};
}

}  // namespace

Launcher::Launcher(const Options& options, int restart)
    : options_(options), restart_(restart), signals_(open_signals()) {}

// Ends all processes, whatever happens.
Launcher::~Launcher() {
    signal_all(SIGKILL);
    for (const Process& process : processes_) waitpid(process.id, nullptr, 0);
    for (const PrefixedOutput& lines : lines_)  // those that a grandchild holds open
        if (lines.pipe() >= 0) close(lines.pipe());
    close(signals_);
}

int Launcher::run() {
    open_store();
    if (!meet()) return 128 + asked_;
    start_all();
    work();
    await_other_nodes();
    if (store_) store_->close();
    note_cause();
    summarize();
    return first_ ? exit_code(processes_[*first_].status) : 0;
}

void Launcher::open_store() {
    namespace md = mezzo::distributed;
    const int size = options_.processes * options_.nodes;
    address_ = options_.master;
    if (options_.node != 0 || size == 1) return;
    run_ = random_name();
    const auto [host, port] =
        options_.master.empty() ? std::pair<std::string, int>("127.0.0.1", 0) : split(options_.master);
    md::Socket listening = md::listen_at(options_.nodes > 1 ? "" : host, port);
    if (!listening)
        throw std::runtime_error(fmt::format("--master: port {} is in use, or not ours to use", port));
    store_ = std::make_unique<md::StoreServer>(
        std::move(listening),
        md::StoreOptions{size, run_, fmt::format("mezzo-run (host {}, pid {})", md::host_name(), getpid()),
                         tell, options_.nodes, restart_});
    if (address_.empty()) address_ = fmt::format("127.0.0.1:{}", store_->port());
}

// Waits for the mezzo-run of all nodes before any rank is started. So the store exists before the ranks, and
// processes of an earlier run do not know the name of this one. Returns false if a signal ends the wait.
bool Launcher::meet() {
    const Clock::time_point begin = Clock::now();
    bool told = false;
    while (asked_ == 0) {
        const std::string what = awaited();
        if (what.empty()) return true;
        const Clock::duration waited = Clock::now() - begin;
        if (waited >= seconds(options_.wait))
            throw std::runtime_error(fmt::format("{}; it was waited for {} s", what, options_.wait));
        if (waited >= seconds(silence) && !std::exchange(told, true)) tell("waits: " + what);
        pollfd entry{signals_, POLLIN, 0};
        poll(&entry, 1, meeting_tick);
        forward_signals();
    }
    return false;
}

// Returns what this node waits for; "" if all nodes are connected.
std::string Launcher::awaited() {
    if (options_.nodes == 1) return "";
    if (store_) {
        const std::vector<int> missing = store_->missing_nodes();
        if (!store_->cause().empty()) return "";  // the ranks will be notified
        return missing.empty() ? "" : fmt::format("node {} has not come", missing.front());
    }
    const auto [host, port] = split(options_.master);
    if (node_zero_.join(host, port, {options_.nodes, options_.node, options_.processes})) {
        run_ = node_zero_.run();
        restart_ = node_zero_.starts();
        return "";
    }
    const std::string& reason = node_zero_.reason();
    return fmt::format("--master: no mezzo-run of node 0 at {}{}{}", options_.master,
                       reason.empty() ? "" : ": ", reason);
}

Command Launcher::command_of(int local_rank) const {
    const int rank = options_.node * options_.processes + local_rank,
              size = options_.processes * options_.nodes;
    Command command{options_.command,
                    {{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", std::to_string(size)},
                     {"LOCAL_RANK", std::to_string(local_rank)},
                     {"LOCAL_WORLD_SIZE", std::to_string(options_.processes)},
                     {"MEZZO_RESTART_COUNT", std::to_string(restart_)}}};
    if (size > 1) {
        command.variables.emplace_back("MEZZO_RENDEZVOUS", address_);
        command.variables.emplace_back("MEZZO_STORE", "launcher");
        command.variables.emplace_back("MEZZO_RUN_ID", run_);
        const auto [host, port] = split(address_);
        command.variables.emplace_back("MASTER_ADDR", host);
        command.variables.emplace_back("MASTER_PORT", std::to_string(port));
    }
    return command;
}

void Launcher::start_all() {
    for (int i = 0; i < options_.processes; ++i) {
        const int rank = options_.node * options_.processes + i;
        const Started started = start(command_of(i), rank);
        processes_.push_back(started.process);
        const std::string prefix = options_.prefix ? fmt::format("[{}] ", rank) : "";
        lines_.emplace_back(started.output, STDOUT_FILENO, prefix);
        lines_.emplace_back(started.errors, STDERR_FILENO, prefix);
    }
}

// Copies output until all processes have ended and their pipes are empty. Does not wait for pipes that a
// grandchild holds open.
void Launcher::work() {
    for (bool last = false; !last;) {
        last = !any_running();
        std::vector<pollfd> entries = {{signals_, POLLIN, 0}};
        std::vector<PrefixedOutput*> readers;
        for (PrefixedOutput& lines : lines_) {
            if (lines.pipe() < 0) continue;
            entries.push_back({lines.pipe(), POLLIN, 0});
            readers.push_back(&lines);
        }
        if (poll(entries.data(), entries.size(), last ? 0 : tick) < 0 && errno != EINTR)
            throw std::runtime_error("poll failed");
        for (std::size_t i = 0; i < readers.size(); ++i) {
            if (entries[i + 1].revents == 0) continue;
            readers[i]->copy();
            last = false;  // there may be more
        }
        forward_signals();
        reap();
        if (options_.node != 0) node_zero_.flush();
        kill_late_ones();
    }
}

// Keeps the store running for ranks of other nodes, which may still connect and ask for the cause, until
// these nodes have ended, at most for the grace time or until a signal.
void Launcher::await_other_nodes() {
    while (store_ && store_->has_other_nodes() && (!kill_at_ || Clock::now() < *kill_at_)) {
        pollfd entry{signals_, POLLIN, 0};
        poll(&entry, 1, meeting_tick);
        if (forward_signals()) return;
    }
}

// Forwards signals to the ranks. Returns whether there were any.
bool Launcher::forward_signals() {
    bool any = false;
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
        const int number = static_cast<int>(info.ssi_signo);
        if (number == SIGCHLD) continue;
        any = true;
        if (asked_ == 0) asked_ = number;
        signal_all(number);
        if (!kill_at_) kill_at_ = Clock::now() + seconds(options_.grace);
    }
    return any;
}

void Launcher::reap() {
    for (std::size_t i = 0; i < processes_.size(); ++i) {
        Process& process = processes_[i];
        if (!process.running || !note_end(process)) continue;
        const bool good = process.status == 0;
        const std::string how = good ? "" : ending(process.status);
        if (store_ && !noted_) store_->process_ended(process.rank, how);
        if (options_.node != 0) node_zero_.process_ended(process.rank, how);
        if (good || first_) continue;
        first_ = i;
        if (!kill_at_) kill_at_ = Clock::now() + seconds(options_.grace);
    }
}

void Launcher::kill_late_ones() {
    if (!kill_at_ || Clock::now() < *kill_at_) return;
    note_cause();  // later failures are caused by this launcher
    signal_all(SIGKILL);
}

// Also signals processes that ranks which have ended have left behind.
void Launcher::signal_all(int number) {
    for (const Process& process : processes_) kill(-process.id, number);
}

bool Launcher::any_running() const {
    return std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return p.running; });
}

// Takes the cause from the store. The order in which the processes end may differ from it: writing a core
// file takes time.
void Launcher::note_cause() {
    if (noted_ || !store_) return;
    noted_ = true;
    cause_ = store_->cause();
    culprit_ = store_->culprit();
}

void Launcher::summarize() {
    for (std::size_t i = 0; i < processes_.size(); ++i)
        if (processes_[i].rank == culprit_ && processes_[i].status != 0) first_ = i;
    if (!first_) return;
    const Process& process = processes_[*first_];
    const std::uint64_t call = store_ ? store_->calls_of(process.rank) : 0;
    const std::string where = call > 0 ? fmt::format(", in call {}", call) : "";
    tell(fmt::format("rank {} of {} {}{}", process.rank, options_.processes * options_.nodes,
                     ending(process.status), where));
    if (!cause_.empty()) tell("first cause: " + cause_);
}

// A rank that another process has asked to end, by a signal, ends by that signal or with its exit code: that
// is no failure.
bool Launcher::failed() const {
    if (!first_ || asked_ != 0) return false;
    const int code = exit_code(processes_[*first_].status);
    return code != 128 + SIGTERM && code != 128 + SIGINT && code != 128 + SIGHUP;
}

int run(const Options& options) {
    for (int restart = 0;; ++restart) {
        Launcher launcher(options, restart);
        const int code = launcher.run();
        if (options.restarts == 0 || !launcher.failed()) return code;
        if (restart == options.restarts) {
            tell(fmt::format("restart {} of {} has failed, too; none is left", restart, options.restarts));
            return code;
        }
        tell(fmt::format("starts all ranks again: restart {} of {}", restart + 1, options.restarts));
    }
}

}  // namespace mezzo_run
