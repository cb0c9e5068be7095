// State that the handles of a group share: its engines and the communication thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "capture/capture_consensus.h"
#include "distributed/collectives.h"
#include "distributed/control.h"
#include "distributed/device_engine.h"
#include "mezzo/distributed/group.h"

namespace mezzo::distributed {

// Runs all work with the engine on one communication thread, in the order of submission. Ranks submit the
// same work in the same order. A group of one rank has no thread: submit() runs the work.
class GroupImpl final : public mezzo::detail::SharedObject {
public:
    using Work = std::function<void(Collectives&)>;

    // `control` is null if no process can die on its own.
    GroupImpl(const RankInfo& place, std::unique_ptr<Collectives> engine,
              std::unique_ptr<Control> control = nullptr, const EngineTimes& times = {});
    // Aborts host operations in progress, and waits for other ranks only in device operations that are
    // already queued. If an exception unwinds the stack it waits for nothing, and the other ranks get the
    // exception's message. A process that was forked from the rank leaves the connections alone, as they are
    // its parent's; there submit() and wait() throw Error(state), and nothing breaks the group.
    ~GroupImpl() override;

    const RankInfo& place() const { return place_; }
    // Queues work and returns its number, from 1 on. Exceptions of the work are thrown by wait(). A broken
    // group drops work.
    std::uint64_t submit(Work work);
    // Waits until that work is done or dropped; the memory that it read and wrote may then be released.
    // Throws the work's exception, once, or Error(backend) with the cause if the group broke before it ran.
    void wait(std::uint64_t ticket);
    bool done(std::uint64_t ticket) const;  // whether wait() would return at once
    void run(Work work) { wait(submit(std::move(work))); }
    std::uint64_t last() const;  // the newest number that submit() has returned
    // Returns the number of the running work; called by the work itself.
    std::uint64_t running() const;

    // The engine for device memory. Its operations run like the host engine's: on the communication thread,
    // or in issue().
    DeviceEngine& devices() { return devices_; }
    const DeviceEngine& devices() const { return devices_; }
    // Runs device operations; their exceptions break the group.
    void on_device(const std::function<void()>& operations);
    // Runs device operations on this thread while the communication thread is idle, for a step that is being
    // captured.
    void issue(const std::function<void()>& operations);
    std::string engine_name() const;
    // The group's object for the consensus of captured steps, made by consensus_of() (rank_checks.h).
    std::weak_ptr<CaptureConsensus>& consensus() { return consensus_; }

    // Breaks the group: all calls, present and future, end with this cause, unless there is an earlier one.
    // May be called from any thread.
    void break_with(const std::string& cause) noexcept;
    // Breaks the group like break_with(), and sends the message to the other ranks, as this rank cannot take
    // part in calls that they wait for. Does nothing in a group that is already broken.
    void give_up(const std::string& words) noexcept;
    // Records that this rank's exception follows from another rank's failure, whose cause is the first one.
    void heard_of_failure() noexcept;

private:
    struct Task {
        std::uint64_t ticket;
        Work work;
    };
    class Engine;  // wraps the engine; its failures break the group

    void work_loop();
    void perform(Task& task);
    bool settled(std::uint64_t ticket) const;
    [[noreturn]] void engine_failed(const std::string& words, bool timed_out);
    void break_for(const std::string& words, bool timed_out);
    void abort_engines() noexcept;
    void say_farewell() noexcept;
    bool forked() const;  // whether this process did not make the group
    void require_own_process() const;
    void forget_thread() noexcept;

    const RankInfo place_;
    const std::int64_t process_;
    const int uncaught_;  // exceptions that were unwinding the stack when the group was made
    std::unique_ptr<Engine> engine_;
    std::unique_ptr<Control> control_;
    DeviceEngine devices_;
    mutable std::mutex mutex_;
    std::condition_variable submitted_, progressed_;
    std::deque<Task> queue_;
    std::uint64_t last_ = 0;      // the newest number that submit() has returned
    std::uint64_t running_ = 0;   // 0: none
    std::uint64_t finished_ = 0;  // all work up to this number has run
    std::map<std::uint64_t, std::exception_ptr> errors_;
    std::string cause_;  // why the group is broken; empty if it is not
    bool stopping_ = false;
    std::weak_ptr<CaptureConsensus> consensus_;  // used by the thread that makes the calls
    std::thread thread_;
};

// Makes a group over any engine; null makes a group of one rank.
Group make_group(const RankInfo& place, std::unique_ptr<Collectives> engine,
                 std::unique_ptr<Control> control = nullptr, const EngineTimes& times = {});

}  // namespace mezzo::distributed
