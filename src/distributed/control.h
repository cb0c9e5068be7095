// A rank's connection to the store: for the rendezvous of the ranks, and for failures of other ranks while a
// call waits for them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "distributed/environment.h"
#include "distributed/gloo_module.h"
#include "distributed/socket.h"
#include "distributed/store_messages.h"
#include "mezzo/distributed/group.h"

namespace mezzo::distributed {

class StoreServer;

class Control final : public KeyValues {
public:
    // Joins the run and returns when all ranks have joined. Rank 0 runs the store if no launcher does. Throws
    // Error(backend).
    Control(const Launch& launch, const InitOptions& options);
    // Ends the watching thread. If the store runs in this process, it notifies the other ranks that it
    // closes.
    ~Control() override;
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

    // The address at which the other ranks reach this machine.
    const std::string& address() const { return address_; }
    // How many ranks run on the same processors as this one, including itself.
    int sharing() const { return sharing_; }
    double timeout() const { return timeout_; }

    void set(const std::string& key, const std::string& value) override;
    // Returns the value of a key. Waits at most the rendezvous timeout; throws Error(backend) with the first
    // cause.
    std::string get(const std::string& key) override;

    // Sets the function that is called with the first cause of a failure, on the watching thread, or at once
    // if the cause is known already. detach() returns when no such call is running.
    void attach(std::function<void(const std::string&)> broken);
    void detach();

    // Records the numbers of calls that this rank has started and finished; the store receives them a moment
    // later. Breaks the group if another rank has left before that call and the store has closed since.
    void at(std::uint64_t started, std::uint64_t finished);
    // Both report that the engine has failed, and return the first cause, which is often another rank's.
    std::string lost(const std::string& words);
    std::string timed_out(const std::string& words);
    // Both report that this rank leaves, in order or by an error. Only the first report counts. failed()
    // waits a moment until the other ranks know.
    void leave() noexcept;
    void failed(const std::string& words) noexcept;
    // Records that another rank has failed. A failed() before the next call of this rank is the first cause
    // only if the store receives no other.
    void heard_of_failure() noexcept;

private:
    struct Leaver {
        std::uint64_t rank, calls;
    };
    void join(const Launch& launch, const InitOptions& options);
    void hold_store(Launch& target, std::chrono::steady_clock::time_point deadline);
    bool greet(Socket socket, const Launch& launch, double seconds, std::string& reason);
    void await_others(const InitOptions& options);
    void watch();
    void take(Message message);
    void broken(const std::string& cause);
    std::string waits_in_vain() const;
    std::string ask_about(FromRank kind, const std::string& words);
    std::string ask(const Message& message, const std::string& words);
    void report();
    bool is_forked() const;
    bool send(const Message& message);
    bool flush(double seconds);
    template <class Fill> bool send_quietly(FromRank kind, const Fill& fill) noexcept;
    void stop() noexcept;

    std::unique_ptr<StoreServer> server_;  // in rank 0, if no launcher runs it
    Socket socket_;
    std::string received_, holder_, address_;
    const int rank_;
    int sharing_ = 1;
    double timeout_, rendezvous_timeout_;
    std::uint64_t process_ = 0;  // forked children must not report for this rank
    // identifies this process to the store when it connects again
    std::uint64_t token_ = 0;

    std::mutex sending_;  // locked before mutex_
    std::string unsent_;  // what the store has not taken yet
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::string> values_;
    std::string cause_;
    std::optional<Leaver> leaver_;  // from the store's closing message
    bool ready_ = false, store_closed_ = false, gone_ = false, stopping_ = false;
    bool said_ = false;                         // that this rank leaves
    std::optional<std::uint64_t> heard_after_;  // calls that had started when this rank heard of a failure
    std::uint64_t started_ = 0, finished_ = 0, reported_started_ = 0, reported_finished_ = 0;
    std::chrono::steady_clock::time_point reported_;
    std::mutex calling_;  // held while broken_ runs
    std::function<void(const std::string&)> broken_;
    std::thread thread_;
};

}  // namespace mezzo::distributed
