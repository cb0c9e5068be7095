// Batches that worker threads make ahead of their use, in order. What the loaders are made of.
#pragma once

#include <cstdint>
#include <utility>

#include "mezzo/shared.h"

#pragma GCC visibility push(default)

namespace mezzo::data::detail {

using mezzo::detail::SharedObject;

template <class T> struct Box final : SharedObject {
    explicit Box(T given) : value(std::move(given)) {}
    T value;
};

// Where the batches of an epoch come from, in two parts.
struct BatchSource : SharedObject {
    // What make() needs for the next batch, null at the end. Called in the order of the batches, one call at a time.
    [[nodiscard]] virtual SharedObject* claim() = 0;
    // The batch. Called by several threads at once.
    [[nodiscard]] virtual SharedObject* make(SharedObject& claimed) const = 0;
};

// Calls make() on `workers` threads for at most `ahead` batches that have not been taken; without workers, or where
// the system starts none, in take(). The threads compute alone, without the CPU backend's other threads. claim() and
// make() record no gradients and run outside of autocast in any case. The destructor waits for the batches that are being made, and drops them.
class BatchQueue final : public SharedObject {
public:
    BatchQueue(BatchSource* source, int workers, std::int64_t ahead);
    ~BatchQueue() override;
    // Number `index`, counted from 0, in the order of the source; those before it that nobody has taken are dropped.
    // The caller owns it. Null behind the last batch, and for one that has been taken. Throws what claim() or make()
    // have thrown for it; behind an exception of claim() there are no batches.
    [[nodiscard]] SharedObject* take(std::int64_t index);

private:
    struct [[gnu::visibility("hidden")]] Impl;
    Impl* impl_;
};

}  // namespace mezzo::data::detail

#pragma GCC visibility pop
