#include "distributed/group_impl.h"

#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

#include "core/live_error.h"
#include "core/step_recorder.h"
#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

// Engine of a group of one rank: copies its own data.
class Alone final : public Collectives {
public:
    void all_reduce(void*, std::int64_t, Dtype, ReduceOp) override {}
    void all_gather(const void* mine, void* all, std::size_t bytes) override { copy(mine, all, bytes); }
    void all_to_all(const void* sent, void* received, std::size_t bytes) override {
        copy(sent, received, bytes);
    }
    void broadcast(void*, std::size_t, int) override {}
    const char* name() const override { return "none: the rank is alone"; }
    void abort() noexcept override {}

private:
    static void copy(const void* from, void* to, std::size_t bytes) {
        if (bytes > 0) std::memmove(to, from, bytes);
    }
};

// Rethrows an exception; an Error is constructed anew in this thread.
[[noreturn]] void rethrow(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const Error& e) {
        fail(e.kind(), e.what());
    }
}

}  // namespace

class GroupImpl::Engine final : public Collectives {
public:
    Engine(GroupImpl& group, std::unique_ptr<Collectives> inner) : group_(group), inner_(std::move(inner)) {}
    void all_reduce(void* data, std::int64_t count, Dtype dtype, ReduceOp op) override {
        guard([&] { inner_->all_reduce(data, count, dtype, op); });
    }
    void all_gather(const void* mine, void* all, std::size_t bytes) override {
        guard([&] { inner_->all_gather(mine, all, bytes); });
    }
    void all_to_all(const void* sent, void* received, std::size_t bytes) override {
        guard([&] { inner_->all_to_all(sent, received, bytes); });
    }
    void broadcast(void* data, std::size_t bytes, int root) override {
        guard([&] { inner_->broadcast(data, bytes, root); });
    }
    const char* name() const override { return inner_->name(); }
    void abort() noexcept override { inner_->abort(); }

private:
    template <class Call> void guard(const Call& call) {
        try {
            call();
        } catch (const TimedOut& error) {
            group_.engine_failed(error.what(), true);
        } catch (const std::exception& error) {
            group_.engine_failed(error.what(), false);
        }
    }

    GroupImpl& group_;
    const std::unique_ptr<Collectives> inner_;
};

GroupImpl::GroupImpl(const RankInfo& place, std::unique_ptr<Collectives> engine,
                     std::unique_ptr<Control> control, const EngineTimes& times)
    : place_(place),
      process_(getpid()),
      uncaught_(std::uncaught_exceptions()),
      engine_(std::make_unique<Engine>(*this, engine ? std::move(engine) : std::make_unique<Alone>())),
      control_(std::move(control)),
      devices_(place, times,
               [this](const std::string& words, bool timed_out) { break_for(words, timed_out); }) {
    if (place.size == 1) return;
    if (control_) control_->attach([this](const std::string& cause) { break_with(cause); });
    thread_ = std::thread([this] { work_loop(); });
}

bool GroupImpl::forked() const { return place_.size > 1 && getpid() != process_; }

// A forked process has copies of the objects of its parent's threads, and none of the threads. Destroying a
// condition variable that a thread of the parent waits for would never return.
void GroupImpl::forget_thread() noexcept {
    static_cast<void>(engine_.release());
    static_cast<void>(control_.release());
    devices_.forget();
    new (&thread_) std::thread;
    new (&submitted_) std::condition_variable;
    new (&progressed_) std::condition_variable;
}

GroupImpl::~GroupImpl() {
    if (forked()) {
        forget_thread();
        return;
    }
    // Ending a communicator aborts its operations, and with them an update whose weights may outlive the
    // group.
    if (std::uncaught_exceptions() <= uncaught_) devices_.finish();
    say_farewell();
    bool busy = false;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        busy = running_ != 0 || !queue_.empty();
    }
    submitted_.notify_all();
    // Without work in progress the engine is not aborted: others may still read what this rank has sent.
    if (busy) abort_engines();
    if (thread_.joinable()) thread_.join();
    devices_.close();  // its watching thread uses members that are destroyed before it
}

void GroupImpl::say_farewell() noexcept {
    if (!control_) return;
    if (std::uncaught_exceptions() > uncaught_) {
        const std::string words = live_error();
        control_->failed(words.empty() ? "ended by an exception" : words);
    } else {
        control_->leave();
    }
    control_->detach();
}

std::uint64_t GroupImpl::submit(Work work) {
    require_own_process();
    refuse_in_capture("Group", "ask other processes");
    std::unique_lock lock(mutex_);
    const std::uint64_t ticket = ++last_;
    if (!cause_.empty()) return ticket;
    if (place_.size > 1) {
        queue_.push_back({ticket, std::move(work)});
        submitted_.notify_one();
        return ticket;
    }
    lock.unlock();
    Task task{ticket, std::move(work)};
    perform(task);
    return ticket;
}

// Whether this work is neither running nor going to run. The caller holds the lock.
bool GroupImpl::settled(std::uint64_t ticket) const {
    return finished_ >= ticket || (!cause_.empty() && running_ != ticket);
}

bool GroupImpl::done(std::uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    return settled(ticket);
}

std::uint64_t GroupImpl::running() const {
    const std::lock_guard lock(mutex_);
    return running_;
}

std::uint64_t GroupImpl::last() const {
    const std::lock_guard lock(mutex_);
    return last_;
}

void GroupImpl::require_own_process() const {
    check(!forked(), ErrorKind::state, "Group: process ", getpid(), " was forked from rank ", place_.rank,
          " and is no rank itself; collective calls come from process ", process_);
}

void GroupImpl::wait(std::uint64_t ticket) {
    require_own_process();
    std::unique_lock lock(mutex_);
    check(ticket >= 1 && ticket <= last_, ErrorKind::value, "Group: no work has the number ", ticket,
          "; the last one has ", last_);
    check(std::this_thread::get_id() != thread_.get_id(), ErrorKind::state,
          "Group: the communication thread cannot wait for itself");
    progressed_.wait(lock, [&] { return settled(ticket); });
    if (const auto found = errors_.find(ticket); found != errors_.end()) {
        const std::exception_ptr error = found->second;
        errors_.erase(found);
        lock.unlock();
        rethrow(error);
    }
    if (finished_ < ticket) fail(ErrorKind::backend, cause_);
}

void GroupImpl::work_loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
        submitted_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        Task task = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        perform(task);
        task.work = nullptr;
        lock.lock();
    }
}

void GroupImpl::perform(Task& task) {
    if (control_) control_->at(task.ticket, task.ticket - 1);
    {
        const std::lock_guard lock(mutex_);
        if (!cause_.empty() || stopping_) return;
        running_ = task.ticket;
    }
    std::exception_ptr error;
    try {
        task.work(*engine_);
    } catch (...) {
        error = std::current_exception();
    }
    if (control_) control_->at(task.ticket, task.ticket);  // before a rank can leave because of it
    {
        const std::lock_guard lock(mutex_);
        running_ = 0;
        finished_ = task.ticket;
        if (error) errors_.emplace(task.ticket, std::move(error));
    }
    progressed_.notify_all();
}

// The engine fails before the store's notification of another rank's end arrives, so the store is asked for
// the cause.
void GroupImpl::engine_failed(const std::string& words, bool timed_out) {
    abort_engines();  // the others notice
    break_for(words, timed_out);
    const std::lock_guard lock(mutex_);
    fail(ErrorKind::backend, cause_);
}

void GroupImpl::break_for(const std::string& words, bool timed_out) {
    if (!control_)
        break_with(words);
    else
        break_with(timed_out ? control_->timed_out(words) : control_->lost(words));
}

void GroupImpl::abort_engines() noexcept {
    engine_->abort();
    devices_.abort();
}

void GroupImpl::on_device(const std::function<void()>& operations) {
    try {
        operations();
    } catch (const std::exception& error) {
        // The host engine is not aborted until the store has notified the others, who would take its end for
        // the cause.
        break_for(error.what(), false);
        const std::lock_guard lock(mutex_);
        fail(ErrorKind::backend, cause_);
    }
}

void GroupImpl::issue(const std::function<void()>& operations) {
    {
        std::unique_lock lock(mutex_);
        progressed_.wait(lock, [&] { return !cause_.empty() || (queue_.empty() && running_ == 0); });
        if (!cause_.empty()) fail(ErrorKind::backend, cause_);
    }
    on_device(operations);
}

std::string GroupImpl::engine_name() const {
    const std::string device = devices_.name();
    return device.empty() ? engine_->name() : device;
}

void GroupImpl::give_up(const std::string& words) noexcept {
    if (forked()) return;
    {
        const std::lock_guard lock(mutex_);
        if (!cause_.empty()) return;
    }
    if (control_) control_->failed(words);
    try {
        break_with("rank " + std::to_string(place_.rank) + ": " + words);
    } catch (const std::bad_alloc&) {
        break_with({});
    }
}

void GroupImpl::heard_of_failure() noexcept {
    if (control_ && !forked()) control_->heard_of_failure();
}

void GroupImpl::break_with(const std::string& cause) noexcept {
    if (forked()) return;
    std::deque<Task> dropped;  // released without the lock, as they hold tensors
    {
        const std::lock_guard lock(mutex_);
        if (!cause_.empty()) return;
        try {
            cause_ = cause.empty() ? "the group is broken" : cause;
        } catch (const std::bad_alloc&) {
            cause_ = "no memory";  // short enough to need no allocation
        }
        dropped.swap(queue_);
    }
    abort_engines();
    progressed_.notify_all();
}

}  // namespace mezzo::distributed
