#include "mezzo/batch_queue.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu/parallel.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/record_function.h"

namespace mezzo::data::detail {

struct BatchQueue::Impl {
    struct Slot {
        std::unique_ptr<SharedObject> batch;
        std::exception_ptr error;
        bool done = false;
    };

    std::unique_ptr<BatchSource> source;
    std::int64_t ahead = 1;

    std::mutex claiming;  // held by the worker that waits for room and claims, so that claims come in order
    std::mutex mutex;     // of everything below
    std::condition_variable room, ready;
    std::deque<Slot> slots;  // number `first` and those after it; a worker's slot stays until it is done
    std::int64_t first = 0;
    bool at_end = false, stopping = false;
    std::vector<std::jthread> threads;

    void start(int workers) {
        try {
            for (int i = 0; i < workers; ++i) threads.emplace_back([this] { work(); });
        } catch (const std::system_error&) {  // those that have started do the work
        }
    }

    void stop() {
        {
            const std::lock_guard lock(mutex);
            stopping = true;
        }
        room.notify_all();
        threads.clear();
    }

    // Makes room for one more batch, and claims it. Null: there is nothing to do any more.
    std::unique_ptr<SharedObject> claim(Slot*& slot) {
        const std::lock_guard order(claiming);
        {
            std::unique_lock lock(mutex);
            room.wait(lock, [&] { return stopping || at_end || std::int64_t(slots.size()) < ahead; });
            if (stopping || at_end) return nullptr;
        }
        std::unique_ptr<SharedObject> claimed;
        std::exception_ptr error;
        try {
            claimed.reset(source->claim());
        } catch (...) {
            error = std::current_exception();
        }
        const std::lock_guard lock(mutex);
        if (claimed || error) slots.emplace_back();
        at_end = claimed == nullptr;
        if (error) slots.back() = {nullptr, std::move(error), true};
        if (claimed) slot = &slots.back();
        if (at_end) ready.notify_all();
        return claimed;
    }

    void make(SharedObject& claimed, Slot& slot) {
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
        Slot* slot = nullptr;
        while (const auto claimed = claim(slot)) make(*claimed, *slot);
    }

    // The oldest batch; none at the end.
    std::optional<Slot> oldest() {
        const insight::RecordFunction scope("BatchLoader.next");
        if (threads.empty()) {
            Slot* slot = nullptr;
            const bool waiting = !slots.empty();
            const NoGrad no_grad;  // as in a worker's thread
            const amp::Autocast off({.enabled = false});
            if (const auto claimed = waiting ? nullptr : claim(slot)) make(*claimed, *slot);
        }
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return slots.empty() ? at_end : slots.front().done; });
        if (slots.empty()) return std::nullopt;
        Slot slot = std::move(slots.front());
        slots.pop_front();
        ++first;
        room.notify_one();
        return slot;
    }
};

BatchQueue::BatchQueue(BatchSource* source, int workers, std::int64_t ahead) : impl_(new Impl) {
    impl_->source.reset(source);
    impl_->ahead = ahead;
    impl_->start(workers);
}

BatchQueue::~BatchQueue() {
    impl_->stop();
    delete impl_;
}

SharedObject* BatchQueue::take(std::int64_t index) {
    while (impl_->first <= index) {
        const bool wanted = impl_->first == index;
        std::optional<Impl::Slot> slot = impl_->oldest();
        if (!slot) return nullptr;
        if (!wanted) continue;
        if (slot->error) std::rethrow_exception(slot->error);
        return slot->batch.release();
    }
    return nullptr;
}

}  // namespace mezzo::data::detail
