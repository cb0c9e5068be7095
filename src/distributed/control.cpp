#include "distributed/control.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <random>
#include <utility>

#include "core/system/log_line.h"
#include "core/system/processors.h"
#include "distributed/exit_reason.h"
#include "distributed/store_messages.h"
#include "distributed/store_server.h"
#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double report_every = 0.25;                   // s: interval of the reports of the watching thread
constexpr std::chrono::milliseconds at_most_every{20};  // reports of the thread that makes the calls
constexpr double longest_sending = 5;                   // s, to a store that reads nothing
constexpr double answer_time = 2;                       // s, for each of several ports
constexpr std::chrono::seconds longest_absence{10};     // until a launcher's store counts as gone
// How long a rank waits for a store that is connected and silent: its machine may be busy.
constexpr std::chrono::seconds longest_answer{10};  // for the answer to a question about the cause
constexpr std::chrono::seconds longest_notice{3};  // for the confirmation of a failure, before the rank exits

Message message(FromRank kind) { return Message(static_cast<std::uint8_t>(kind)); }

double seconds_until(Clock::time_point time) { return std::max(0.0, Seconds(time - Clock::now()).count()); }

std::uint64_t random_token() {
    std::random_device source;
    return std::uint64_t(source()) << 32 | source();
}

bool on_one_machine(const Launch& launch) { return launch.place.local_size == launch.place.size; }

// Returns an empty socket if all ports are taken.
Socket listen_for(const Launch& launch) {
    for (int i = 0; i < launch.ports; ++i)
        if (Socket socket = listen_at(on_one_machine(launch) ? launch.host : "", launch.first_port + i))
            return socket;
    return {};
}

std::string port_range(const Launch& launch) {
    const std::string first = std::to_string(launch.first_port);
    return launch.ports == 1
               ? "port " + first
               : "ports " + first + " to " + std::to_string(launch.first_port + launch.ports - 1);
}

// Returns an empty socket if nothing listens there. Changes `reason` only if an error has a message.
Socket reach(const std::string& host, int port, double seconds, std::string& reason) {
    try {
        return connect_to(host, port, seconds);
    } catch (const Error& error) {  // DNS may not know a host before it has started
        reason = error.what();
        if (reason.starts_with("init: ")) reason.erase(0, 6);
        return {};
    }
}

void await_name(const std::string& host, Clock::time_point deadline) {
    while (!is_known(host) && Clock::now() < deadline)
        std::this_thread::sleep_for(Seconds(std::min(0.5, seconds_until(deadline))));
}

}  // namespace

Control::Control(const Launch& launch, const InitOptions& options)
    : rank_(launch.place.rank),
      timeout_(options.timeout),
      rendezvous_timeout_(options.rendezvous_timeout),
      process_(static_cast<std::uint64_t>(getpid())),
      token_(random_token()) {
    join(launch, options);
    thread_ = std::thread([this] { watch(); });
    try {
        await_others(options);
    } catch (...) {
        leave();
        stop();
        throw;
    }
    speak_for(*this);
}

Control::~Control() {
    speak_no_more_for(*this);
    leave();
    stop();
}

// Lets the store read what was sent, waiting for at most a second.
void Control::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    shutdown(socket_.descriptor(), SHUT_WR);
    if (thread_.joinable()) thread_.join();
}

// Connects to the store of this run, which may not have started yet, and may listen at a later port than the
// first.
void Control::join(const Launch& launch, const InitOptions& options) {
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(options.rendezvous_timeout));
    Launch target = launch;
    if (launch.place.rank == 0 && !launch.launcher_holds_store) hold_store(target, deadline);
    // With only one port there is no other to ask meanwhile.
    const double longest = target.ports == 1 ? options.rendezvous_timeout : answer_time;
    std::string reason;
    // A launcher starts its store before its ranks, so a store that is not found has ended.
    auto end_of_absence =
        launch.launcher_holds_store ? Clock::now() + longest_absence : Clock::time_point::max();
    for (double pause = 0.02;; pause = std::min(0.5, pause * 1.5)) {
        for (int i = 0; i < target.ports && (i == 0 || Clock::now() < deadline); ++i) {
            const int port = target.first_port + i;
            const auto left = [&] { return std::min(longest, seconds_until(deadline)); };
            Socket socket = reach(target.host, port, left(), reason);
            if (!socket) continue;
            if (greet(std::move(socket), launch, left(), reason)) return;
            end_of_absence = Clock::time_point::max();
        }
        check(Clock::now() < end_of_absence, ErrorKind::backend,
              "init: the store is gone: it was held by the mezzo-run that has started this rank, at ",
              launch.host, ", ", port_range(launch), reason.empty() ? "" : ": ", reason);
        check(Clock::now() < deadline, ErrorKind::backend, "init: rank ", launch.place.rank, " of ",
              launch.place.size, " found no store of this run at ", launch.host, ", ", port_range(launch),
              ", within ", options.rendezvous_timeout, " s",
              reason.empty() ? "; is rank 0 running there, and does a firewall let its ports through?"
                             : ": " + reason);
        std::this_thread::sleep_for(Seconds(std::min(pause, seconds_until(deadline))));
    }
}

// Starts the store in rank 0, and sets the target to its address.
void Control::hold_store(Launch& target, Clock::time_point deadline) {
    if (on_one_machine(target)) await_name(target.host, deadline);
    Socket listening = listen_for(target);
    check(bool(listening), ErrorKind::backend, "init: other programs listen at ", port_range(target), " of ",
          target.host, "; set MASTER_PORT to a free one",
          target.run.empty() ? ", or MEZZO_RUN_ID, the same for all ranks of a run, for runs to share ports"
                             : "");
    const StoreOptions options{target.place.size, target.run,
                               "rank 0 (host " + host_name() + ", pid " + std::to_string(process_) + ")",
                               nullptr};
    target.first_port = port_of(listening);
    target.ports = 1;
    std::string reason;
    if (!reach(target.host, target.first_port, answer_time, reason)) target.host = "127.0.0.1";
    server_ = std::make_unique<StoreServer>(std::move(listening), options);
}

// Returns true if this is the store of our run and it has accepted this rank. Otherwise `reason` is its
// answer, if there was one.
bool Control::greet(Socket socket, const Launch& launch, double seconds, std::string& reason) {
    const Message hello = std::move(message(FromRank::hello)
                                        .add(rank_greeting)
                                        .add(version())
                                        .add(launch.run)
                                        .add(std::uint64_t(launch.place.size))
                                        .add(std::uint64_t(launch.place.rank))
                                        .add(host_name())
                                        .add(process_)
                                        .add(processor_set())
                                        .add(std::uint64_t(timeout_ * 1e3))
                                        .add(token_));
    received_.clear();
    if (!send_all(socket, hello.framed())) return false;
    std::optional<Message> answer;
    try {
        answer = receive_message(socket, received_, seconds);
        if (!answer || answer->text() != store_greeting) return false;
    } catch (const Error&) {  // something else listens here
        return false;
    }
    if (answer->kind() == std::uint8_t(FromStore::refused)) {
        const bool look_on = answer->number() != 0;
        reason = answer->text();
        check(look_on, ErrorKind::backend, "init: ", reason);
        return false;
    }
    holder_ = answer->text();
    socket_ = std::move(socket);
    return true;
}

void Control::await_others(const InitOptions& options) {
    std::unique_lock lock(mutex_);
    const auto decided = [&] { return ready_ || !cause_.empty() || gone_; };
    if (!changed_.wait_for(lock, Seconds(options.rendezvous_timeout), decided)) {
        lock.unlock();
        const std::string words = "not all ranks have come within " +
                                  std::to_string(std::lround(options.rendezvous_timeout)) + " s";
        ask(message(FromRank::timed_out).add(std::uint64_t(0)).add(std::uint64_t(0)).add(words), words);
        lock.lock();
    }
    if (!cause_.empty()) fail(ErrorKind::backend, "init: ", cause_);
    check(ready_, ErrorKind::backend, "init: the store has closed before all ranks had come: it was held by ",
          holder_);
    const std::string own = local_address(socket_);
    if (!is_loopback(own) || address_.empty()) address_ = own;
}

void Control::set(const std::string& key, const std::string& value) {
    send(message(FromRank::set).add(key).add(value));
}

std::string Control::get(const std::string& key) {
    send(message(FromRank::get).add(key));
    std::unique_lock lock(mutex_);
    const auto decided = [&] { return values_.count(key) != 0 || !cause_.empty() || gone_; };
    if (!changed_.wait_for(lock, Seconds(rendezvous_timeout_), decided)) {
        lock.unlock();
        const std::string words = "not all ranks have said where they are within " +
                                  std::to_string(std::lround(rendezvous_timeout_)) + " s";
        ask(message(FromRank::timed_out).add(std::uint64_t(0)).add(std::uint64_t(0)).add(words), words);
        lock.lock();
    }
    const auto found = values_.find(key);
    if (found != values_.end()) return found->second;
    fail(ErrorKind::backend, "init: ", cause_.empty() ? "the store has closed" : cause_);
}

void Control::attach(std::function<void(const std::string&)> call) {
    const std::lock_guard calling(calling_);
    broken_ = std::move(call);
    std::string cause;
    {
        const std::lock_guard lock(mutex_);
        cause = cause_;
    }
    if (!cause.empty()) broken_(cause);
}

void Control::detach() {
    const std::lock_guard calling(calling_);
    broken_ = nullptr;
}

void Control::at(std::uint64_t started, std::uint64_t finished) {
    std::string cause;
    {
        const std::lock_guard lock(mutex_);
        started_ = started;
        finished_ = finished;
        cause = waits_in_vain();
        if (cause.empty() && Clock::now() - reported_ < at_most_every) return;
    }
    if (!cause.empty()) return broken(cause);
    report();
}

// Returns why no rank will answer the call that this rank is in, or "". The caller holds the lock.
std::string Control::waits_in_vain() const {
    if (!leaver_ || started_ <= leaver_->calls) return "";
    return words_of_unequal_calls(leaver_->rank, leaver_->calls, std::uint64_t(rank_), started_);
}

std::string Control::lost(const std::string& words) { return ask_about(FromRank::lost, words); }
std::string Control::timed_out(const std::string& words) { return ask_about(FromRank::timed_out, words); }

std::string Control::ask_about(FromRank kind, const std::string& words) {
    Message question = message(kind);
    {
        const std::lock_guard lock(mutex_);
        question.add(started_).add(finished_).add(words);
    }
    return ask(question, words);
}

// Asks the store for the first cause. Returns the cause, or `words` if the store does not name one, and saves
// it in cause_.
std::string Control::ask(const Message& question, const std::string& words) {
    const bool sent = send(question);
    std::unique_lock lock(mutex_);
    if (sent) changed_.wait_for(lock, longest_answer, [&] { return !cause_.empty() || gone_; });
    if (cause_.empty()) cause_ = words;
    return cause_;
}

void Control::leave() noexcept {
    if (is_forked()) return;
    std::uint64_t finished = 0;
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(said_, true)) return;
        finished = finished_;
    }
    send_quietly(FromRank::left, [&](Message& m) { m.add(finished); });
}

void Control::failed(const std::string& words) noexcept {
    if (is_forked()) return;
    FromRank kind = FromRank::failed;
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(said_, true)) return;
        if (heard_after_ == started_) kind = FromRank::followed;
    }
    if (!send_quietly(kind, [&](Message& m) { m.add(words); })) return;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest_notice, [&] { return !cause_.empty() || gone_; });
}

void Control::heard_of_failure() noexcept {
    const std::lock_guard lock(mutex_);
    heard_after_ = started_;
}

template <class Fill> bool Control::send_quietly(FromRank kind, const Fill& fill) noexcept {
    try {
        Message m = message(kind);
        fill(m);
        return send(m);
    } catch (...) {  // no memory: the end of the connection reports it
        return false;
    }
}

// Whether this is a forked child. The parent's threads may have held any mutex at the fork.
bool Control::is_forked() const { return static_cast<std::uint64_t>(getpid()) != process_; }

bool Control::send(const Message& message) {
    if (is_forked()) return false;
    const std::string frame = message.framed();
    const std::lock_guard lock(sending_);
    unsent_ += frame;
    return flush(longest_sending) && unsent_.empty();
}

// Sends what the store has not taken before the next message, as half a message would make all later ones
// unreadable. Returns false if the store is gone.
bool Control::flush(double seconds) {
    std::string_view rest = unsent_;
    const bool open = send_some(socket_, rest, seconds);
    unsent_.erase(0, unsent_.size() - rest.size());
    return open;
}

void Control::watch() {
    bool open = true;
    std::optional<Clock::time_point> end;
    while (open && (!end || Clock::now() < *end)) {
        try {
            open = receive_some(socket_, received_, report_every);
            while (std::optional<Message> next = take_message(received_)) take(std::move(*next));
        } catch (const std::exception&) {  // damaged message
            open = false;
        }
        report();
        const std::lock_guard lock(mutex_);
        if (stopping_ && !end) end = Clock::now() + std::chrono::seconds(1);
    }
    bool expected;
    {
        const std::lock_guard lock(mutex_);
        expected = store_closed_ || stopping_;
    }
    if (!expected) broken("the store is gone: it was held by " + holder_);
    {
        const std::lock_guard lock(mutex_);
        gone_ = true;
    }
    changed_.notify_all();
}

void Control::take(Message message) {
    switch (static_cast<FromStore>(message.kind())) {
        case FromStore::broken:
            return broken(message.text());
        case FromStore::note:
            return log_line("distributed: " + message.text());
        default:
            break;
    }
    std::string cause;
    {
        const std::lock_guard lock(mutex_);
        switch (static_cast<FromStore>(message.kind())) {
            case FromStore::ready:
                address_ = message.text();
                sharing_ = int(message.number());
                ready_ = true;
                break;
            case FromStore::value: {
                std::string key = message.text();
                values_[std::move(key)] = message.text();
                break;
            }
            case FromStore::closing:
                store_closed_ = true;
                if (message.number() != 0) {
                    const std::uint64_t rank = message.number();
                    leaver_ = Leaver{rank, message.number()};
                }
                cause = waits_in_vain();
                break;
            default:
                break;
        }
    }
    changed_.notify_all();
    if (!cause.empty()) broken(cause);
}

void Control::broken(const std::string& cause) {
    {
        const std::lock_guard lock(mutex_);
        if (cause_.empty()) cause_ = cause;
    }
    changed_.notify_all();
    const std::lock_guard calling(calling_);
    if (broken_) broken_(cause);
}

// Reports the calls of this rank to the store if they have changed, without waiting: if the store reads
// nothing, a later report follows.
void Control::report() {
    const std::unique_lock sending(sending_, std::try_to_lock);
    if (!sending || is_forked() || !flush(0) || !unsent_.empty()) return;
    Message progress = message(FromRank::at);
    {
        const std::lock_guard lock(mutex_);
        if (said_ || (started_ == reported_started_ && finished_ == reported_finished_)) return;
        reported_ = Clock::now();
        reported_started_ = started_;
        reported_finished_ = finished_;
        progress.add(started_).add(finished_);
    }
    unsent_ = progress.framed();
    flush(0);
}

}  // namespace mezzo::distributed
