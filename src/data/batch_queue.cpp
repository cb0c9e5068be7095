#include "mezzo/data/batch_queue.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <vector>

#include "cpu/parallel.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/record_function.h"

namespace mezzo::data::detail {

struct BatchQueue::Impl {
    struct PendingBatch {
        std::unique_ptr<SharedObject> batch;
        std::exception_ptr error;
        bool done = false;
    };

    std::shared_ptr<Impl> self;  // of the queue; shared with exit()
    std::unique_ptr<BatchSource> source;
    std::int64_t ahead = 1;

    std::mutex mutex;  // guards all members below except the threads
    std::condition_variable room, ready;
    std::deque<PendingBatch> slots;  // slots from number `first` on; a worker's slot stays until it is done
    std::int64_t first = 0;
    bool claiming = false;  // a worker is in claim(): only one at a time, so that batches are in order
    bool at_end = false, stopping = false;
    bool in_caller = true;  // no thread was started: take() makes the batches
    std::mutex ending;      // guards the threads, once they have started
    std::vector<std::thread> threads;
    pid_t pid = getpid();

    void start(int workers) {
        try {
            for (int i = 0; i < workers; ++i) threads.emplace_back([this] { work(); });
        } catch (const std::system_error&) {  // the threads that have started do the work
        }
    }

    // Joins the threads, except the calling one, which may have called exit(). After fork() the child has
    // none of them.
    void stop() {
        if (pid == getpid()) {
            const std::lock_guard lock(mutex);
            stopping = true;
            room.notify_all();
        }
        for (std::thread& thread : threads)
            pid == getpid() && thread.get_id() != std::this_thread::get_id() ? thread.join()
                                                                             : thread.detach();
        threads.clear();
    }

    // Waits until there is room for one more batch, and claims it. Returns null if there is nothing more to
    // do.
    std::unique_ptr<SharedObject> claim(PendingBatch*& slot) {
        {
            std::unique_lock lock(mutex);
            room.wait(lock, [&] {
                return stopping || at_end || (!claiming && std::int64_t(slots.size()) < ahead);
            });
            if (stopping || at_end) return nullptr;
            claiming = true;
        }
        std::unique_ptr<SharedObject> claimed;
        std::exception_ptr error;
        try {
            claimed.reset(source->claim());
        } catch (...) {
            error = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        claiming = false;
        if (claimed || error) slots.emplace_back();
        at_end = claimed == nullptr;
        at_end ? room.notify_all() : room.notify_one();
        if (error) slots.back() = {nullptr, std::move(error), true};
        if (claimed) slot = &slots.back();
        if (at_end) ready.notify_all();
        return claimed;
    }

    void make(SharedObject& claimed, PendingBatch& slot) {
        std::unique_ptr<SharedObject> batch;
        std::exception_ptr error;
        try {
            batch.reset(source->make(claimed));
        } catch (...) {
            error = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        slot = {std::move(batch), std::move(error),
                true};  // who takes it ends it: this thread keeps nothing of it
        ready.notify_all();
    }

    void work() {
        const cpu::SerialScope alone;
        const NoGrad no_grad;
        PendingBatch* slot = nullptr;
        while (const auto claimed = claim(slot)) make(*claimed, *slot);
    }

    // Returns the oldest batch, or nothing at the end.
    std::optional<PendingBatch> oldest() {
        const insight::RecordFunction scope("BatchLoader.next");
        if (in_caller) {
            PendingBatch* slot = nullptr;
            const bool waiting = !slots.empty();
            const NoGrad no_grad;  // as in a worker's thread
            const amp::Autocast off({.enabled = false});
            if (const auto claimed = waiting ? nullptr : claim(slot)) make(*claimed, *slot);
        }
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return slots.empty() ? at_end : slots.front().done; });
        if (slots.empty()) return std::nullopt;
        PendingBatch slot = std::move(slots.front());
        slots.pop_front();
        ++first;
        room.notify_one();
        return slot;
    }
};

// All queues. exit() joins their threads before the destructors of static objects that were made before the
// first queue: data sets, loaders, and objects that transforms read.
struct BatchQueue::Live {
    static Live& all() {
        static Live& live = *new Live;  // never destroyed: other threads may end queues during exit()
        static const int registered = std::atexit([] { all().stop(); });
        static_cast<void>(registered);
        return live;
    }
    // Starts the queue's threads; none during exit().
    void start(Impl* impl, int workers) {
        const std::lock_guard lock(mutex);
        if (ended) return;
        queues.insert(impl);
        impl->start(workers);
        impl->in_caller = impl->threads.empty();
    }
    // Not locked if, after fork(), a thread that this process lacks holds the mutex.
    std::unique_lock<std::mutex> locked() {
        std::unique_lock lock(mutex, std::try_to_lock);
        if (!lock && pid == getpid()) lock.lock();
        return lock;
    }
    void remove(Impl* impl) {
        if (const std::unique_lock lock = locked()) queues.erase(impl);
    }
    // Stops all queues. Skips a queue that another thread is stopping, as that thread may be waiting for this
    // one.
    void stop() {
        std::unique_lock lock = locked();
        if (!lock) return;
        ended = true;
        std::vector<std::shared_ptr<Impl>> found;
        for (Impl* const impl : queues) found.push_back(impl->self);
        lock.unlock();
        for (const std::shared_ptr<Impl>& impl : found)
            if (const std::unique_lock own(impl->ending, std::try_to_lock); own.owns_lock()) impl->stop();
    }
    std::mutex mutex;
    std::unordered_set<Impl*> queues;
    bool ended = false;
    const pid_t pid = getpid();
};

BatchQueue::BatchQueue(BatchSource* source, int workers, std::int64_t ahead) : impl_(new Impl) {
    impl_->self.reset(impl_);
    impl_->source.reset(source);
    impl_->ahead = ahead;
    if (workers > 0) Live::all().start(impl_, workers);
}

BatchQueue::~BatchQueue() {
    const std::shared_ptr<Impl> own = impl_->self;
    Live::all().remove(impl_);
    const std::lock_guard ending(own->ending);
    own->stop();
    // After fork() the child leaves it: its condition variables have waiters that this process lacks.
    if (own->pid == getpid()) own->self.reset();
}

SharedObject* BatchQueue::take(std::int64_t index) {
    while (impl_->first <= index) {
        const bool wanted = impl_->first == index;
        std::optional<Impl::PendingBatch> slot = impl_->oldest();
        if (!slot) return nullptr;
        if (!wanted) continue;
        if (slot->error) std::rethrow_exception(slot->error);
        return slot->batch.release();
    }
    return nullptr;
}

}  // namespace mezzo::data::detail
