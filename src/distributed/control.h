// A rank's connection to the store: where it meets the others, and learns of their failures while it waits for them.
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
#include "mezzo/distributed.h"

namespace mezzo::distributed {

class StoreServer;

class Control final : public KeyValues {
public:
    // Joins the run; returns when all ranks have. Rank 0 holds the store where no launcher does. Error(backend).
    Control(const Launch& launch, const InitOptions& options);
    // The watching thread ends; the store, if it is here, tells the others that it closes.
    ~Control() override;
    Control(const Control&) = delete;
    Control& operator=(const Control&) = delete;

    // The address at which the other ranks reach this machine.
    const std::string& address() const { return address_; }
    // How many ranks run on the same processors as this one, itself included.
    int sharing() const { return sharing_; }
    double timeout() const { return timeout_; }

    void set(const std::string& key, const std::string& value) override;
    // Waits for at most the rendezvous timeout; throws Error(backend) with the first cause.
    std::string get(const std::string& key) override;

    // From then on, and at once if it is known already, `broken` is called with the first cause, on the watching thread. detach()
    // returns when no such call is under way.
    void attach(std::function<void(const std::string&)> broken);
    void detach();

    // Where this rank is, in calls. The store learns of it a moment later.
    // Breaks the group where a rank has left before that call and the store has closed since.
    void at(std::uint64_t started, std::uint64_t finished);
    // The engine has failed: the first cause, which is often another rank's.
    std::string lost(const std::string& words);
    std::string timed_out(const std::string& words);
    // This rank goes, in order or not. Nothing after the first of them counts. failed() waits a moment until the others know.
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

    std::unique_ptr<StoreServer> server_;  // in rank 0, where no launcher holds it
    Socket socket_;
    std::string received_, holder_, address_;
    const int rank_;
    int sharing_ = 1;
    double timeout_, rendezvous_timeout_;
    std::uint64_t process_ = 0;  // children that are forked off do not speak for this rank
    std::uint64_t token_ = 0;    // tells the store who comes again from who only looks like it

    std::mutex sending_;  // before mutex_
    std::string unsent_;  // what the store has not taken yet
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::string> values_;
    std::string cause_;
    std::optional<Leaver> leaver_;  // what the store has said when it closed
    bool ready_ = false, store_closed_ = false, gone_ = false, stopping_ = false;
    bool said_ = false;                         // that this rank goes
    std::optional<std::uint64_t> heard_after_;  // calls that had started when this rank heard of a failure
    std::uint64_t started_ = 0, finished_ = 0, reported_started_ = 0, reported_finished_ = 0;
    std::chrono::steady_clock::time_point reported_;
    std::mutex calling_;  // held while broken_ runs
    std::function<void(const std::string&)> broken_;
    std::thread thread_;
};

}  // namespace mezzo::distributed
