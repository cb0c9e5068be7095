// BatchQueue: worker threads make batches ahead of use and in order. Implementation of the loaders.
#pragma once

#include <cstdint>
#include <utility>

#include "mezzo/shard.h"
#include "mezzo/shared.h"

#pragma GCC visibility push(default)

namespace mezzo::data::detail {

using mezzo::detail::SharedObject;

template <class T> struct Box final : SharedObject {
    explicit Box(T given) : value(std::move(given)) {}
    T value;
};

// Position of a loader, shared with its iterators, which may outlive it.
struct LoaderProgress final : SharedObject {
    LoaderPosition next, position;  // begin of the next loop; after the last returned batch
};
// Owner of a loader's LoaderProgress. A copy of the loader gets its own.
class OwnProgress {
public:
    OwnProgress() : shared_(new LoaderProgress) {}
    OwnProgress(const OwnProgress& other) : OwnProgress() { *this = other; }
    OwnProgress& operator=(const OwnProgress& other) & {
        shared_->next = other->next;
        shared_->position = other->position;
        return *this;
    }
    LoaderProgress* operator->() const { return shared_.operator->(); }
    [[nodiscard]] const mezzo::detail::SharedHandle<LoaderProgress>& shared() const { return shared_; }

private:
    mezzo::detail::SharedHandle<LoaderProgress> shared_;
};

// Producer of the batches of an epoch, in two steps: claim() serially, make() in parallel.
struct BatchSource : SharedObject {
    // Returns the input of make() for the next batch, null at the end. Called in the order of the batches,
    // one call at a time.
    [[nodiscard]] virtual SharedObject* claim() = 0;
    // Makes the batch. Called by several threads at once.
    [[nodiscard]] virtual SharedObject* make(SharedObject& claimed) const = 0;
};

// Calls make() on `workers` threads for at most `ahead` batches that have not been taken. Without workers, or
// if the system cannot start a thread, take() calls it. Workers compute without the CPU backend's other
// threads. claim() and make() always run without gradient recording and outside of autocast. The destructor
// waits for running make() calls, and drops their batches. exit() waits for them, too, before it destroys
// objects of static lifetime that are older than the first queue.
class BatchQueue final : public SharedObject {
public:
    BatchQueue(BatchSource* source, int workers, std::int64_t ahead);
    ~BatchQueue() override;
    // Returns batch `index`, counted from 0 in the order of the source, and drops earlier batches that were
    // not taken. The caller owns it. Null after the last batch, and for a batch that was taken. Throws what
    // claim() or make() have thrown for it; after an exception of claim() there are no more batches.
    [[nodiscard]] SharedObject* take(std::int64_t index);

private:
    struct [[gnu::visibility("hidden")]] Impl;
    struct [[gnu::visibility("hidden")]] Live;
    Impl* impl_;
};

}  // namespace mezzo::data::detail

#pragma GCC visibility pop
