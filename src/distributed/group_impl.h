// What the handles of a group share: its engine and the thread that works with it.
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

#include "core/step_party.h"
#include "distributed/collectives.h"
#include "distributed/control.h"
#include "distributed/device_engine.h"
#include "distributed/place.h"
#include "mezzo/distributed.h"

namespace mezzo::distributed {

// All work with the engine runs on the group's one communication thread, in the order in which it was submitted. Ranks submit the same
// work in the same order. In a group of one rank there is no thread: work runs when it is submitted.
class GroupImpl final : public mezzo::detail::SharedObject {
public:
    using Work = std::function<void(Collectives&)>;

    // `control` is null where no process can die on its own.
    GroupImpl(const Place& place, std::unique_ptr<Collectives> engine,
              std::unique_ptr<Control> control = nullptr, const EngineTimes& times = {});
    // Gives up what hosts have under way, and waits for no other rank but in what devices have queued already. While an exception unwinds the stack it waits
    // for nothing, and the others get its words. In a process that was forked from the rank, the connections are its parent's: they are left alone, submit() and
    // wait() throw Error(state), and nothing breaks the group.
    ~GroupImpl() override;

    const Place& place() const { return place_; }
    // The number of the work, from 1 on. Does not throw what the work throws: wait() does. Once the group is broken, work is dropped.
    std::uint64_t submit(Work work);
    // Until that work is done or dropped; what it read and wrote may then be released. Throws what the work threw, once, or
    // Error(backend) with the cause where the group broke before it.
    void wait(std::uint64_t ticket);
    bool done(std::uint64_t ticket) const;  // wait() would not block
    void run(Work work) { wait(submit(std::move(work))); }
    std::uint64_t last() const;  // the newest number given out
    // The number of the work that is running, for the work itself.
    std::uint64_t running() const;

    // The engine for the device's memory. Its operations are work like the host engine's: on the communication thread, or inside of issue().
    DeviceEngine& devices() { return devices_; }
    const DeviceEngine& devices() const { return devices_; }
    // What device operations throw breaks the group.
    void on_device(const std::function<void()>& operations);
    // Does work for the device on this thread, while the communication thread has none: for a step that is captured.
    void issue(const std::function<void()>& operations);
    std::string engine_name() const;
    // For step_party.cpp.
    std::weak_ptr<StepParty>& party() { return party_; }

    // From any thread: all calls, present and future, end with this cause, unless there is an earlier one.
    void break_with(const std::string& cause) noexcept;
    // The same, and the other ranks get the words, too: this rank cannot go on with calls that they wait for. Nothing happens in a
    // group that is broken.
    void give_up(const std::string& words) noexcept;
    // For what throws on this rank because another rank has failed: the first cause is the other rank's.
    void heard_of_failure() noexcept;

private:
    struct Task {
        std::uint64_t ticket;
        Work work;
    };
    class Engine;  // the engine, whose failures break the group

    void work_loop();
    void perform(Task& task);
    bool settled(std::uint64_t ticket) const;
    [[noreturn]] void engine_failed(const std::string& words, bool timed_out);
    void break_for(const std::string& words, bool timed_out);
    void abort_engines() noexcept;
    void say_farewell() noexcept;
    bool forked() const;  // this process is not the one that made the group
    void require_own_process() const;
    void forget_thread() noexcept;

    const Place place_;
    const std::int64_t process_;
    const int uncaught_;  // exceptions that were unwinding the stack when the group was made
    std::unique_ptr<Engine> engine_;
    std::unique_ptr<Control> control_;
    DeviceEngine devices_;
    mutable std::mutex mutex_;
    std::condition_variable submitted_, progressed_;
    std::deque<Task> queue_;
    std::uint64_t last_ = 0;      // the newest number given out
    std::uint64_t running_ = 0;   // 0: none
    std::uint64_t finished_ = 0;  // all up to this one ran
    std::map<std::uint64_t, std::exception_ptr> errors_;
    std::string cause_;  // why the group is broken; empty: it is not
    bool stopping_ = false;
    std::weak_ptr<StepParty> party_;  // of the thread that makes the calls
    std::thread thread_;
};

// A group over any engine. An engine of null makes a group of one rank.
Group make_group(const Place& place, std::unique_ptr<Collectives> engine,
                 std::unique_ptr<Control> control = nullptr, const EngineTimes& times = {});
GroupImpl& impl_of(const Group& group);

}  // namespace mezzo::distributed
