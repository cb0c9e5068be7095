// Batches that worker threads make ahead of their use, in order. What the loaders are made of.
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

// Where a loader stands. Its iterators, which may outlive it, share this.
struct LoaderProgress final : SharedObject {
    LoaderPosition next, position;  // where the next loop begins; behind the batch that was handed out last
};
// That of a loader. A copy of the loader has its own.
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

// Where the batches of an epoch come from, in two parts.
struct BatchSource : SharedObject {
    // What make() needs for the next batch, null at the end. Called in the order of the batches, one call at
    // a time.
    [[nodiscard]] virtual SharedObject* claim() = 0;
    // The batch. Called by several threads at once.
    [[nodiscard]] virtual SharedObject* make(SharedObject& claimed) const = 0;
};

// Calls make() on `workers` threads for at most `ahead` batches that have not been taken; without workers, or
// where the system starts none, in take(). The threads compute alone, without the CPU backend's other
// threads. claim() and make() record no gradients and run outside of autocast in any case. The destructor
// waits for the batches that are being made, and drops them. exit() waits for the batches that are being
// made, too, before objects of static lifetime end that were made before the first queue.
class BatchQueue final : public SharedObject {
public:
    BatchQueue(BatchSource* source, int workers, std::int64_t ahead);
    ~BatchQueue() override;
    // Number `index`, counted from 0, in the order of the source; those before it that nobody has taken are
    // dropped. The caller owns it. Null behind the last batch, and for one that has been taken. Throws what
    // claim() or make() have thrown for it; behind an exception of claim() there are no batches.
    [[nodiscard]] SharedObject* take(std::int64_t index);

private:
    struct [[gnu::visibility("hidden")]] Impl;
    struct [[gnu::visibility("hidden")]] Live;
    Impl* impl_;
};

}  // namespace mezzo::data::detail

#pragma GCC visibility pop
