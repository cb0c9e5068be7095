// A reference-counted block of device memory from the caching allocator.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "core/internal.h"
#include "core/memory/ref.h"
#include "mezzo/device.h"

namespace mezzo {

struct Storage;
MEZZO_INTERNAL void dispose(Storage* storage) noexcept;

struct Storage {
    std::atomic<std::uint32_t> refs{0};
    Device device;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::atomic<std::uint64_t> version{0};     // grows with every in-place write
    std::uint64_t zeroed = ~std::uint64_t(0);  // the version in which every element was set to zero, if any
    bool foreign = false;  // allocated by another thread than a ForeignMark's, while it lived
    // The same elements in an order that a backend reads faster, made by it for itself; or null. packed_mutex
    // guards it. It lives until the storage does not, or drop_packed().
    Ref<Storage> packed;
};

extern std::mutex packed_mutex;
// Frees the packed copy of the storage, if there is one.
void drop_packed(Storage& storage);

// While it lives, storages that other threads allocate are marked as foreign, for observers of this thread's
// ops.
class [[nodiscard]] ForeignMark {
public:
    ForeignMark() {
        alive.fetch_add(1, std::memory_order_relaxed);
        ++here;
    }
    ~ForeignMark() {
        alive.fetch_sub(1, std::memory_order_relaxed);
        --here;
    }
    ForeignMark(const ForeignMark&) = delete;
    ForeignMark& operator=(const ForeignMark&) = delete;
    static bool wanted() { return alive.load(std::memory_order_relaxed) != 0 && here == 0; }

private:
    MEZZO_INTERNAL static constinit inline std::atomic<int> alive{0};
    MEZZO_INTERNAL static constinit inline thread_local int here = 0;
};

// A storage of at least `bytes`, 256-byte aligned; without memory if `bytes` is 0. If memory is short, the
// allocator empties its cache and tries again; then it throws Error(memory) with its statistics.
Ref<Storage> allocate_storage(std::size_t bytes, Device device);
// Makes a storage on memory of another owner. give_back(lender) is called once, after the last reference to
// the storage is dropped.
MEZZO_INTERNAL Ref<Storage> borrowed_storage(void* data, std::size_t bytes, Device device,
                                             void (*give_back)(void*), void* lender);

// A part of a storage as a storage with its own version and references. It holds a reference to the whole.
MEZZO_INTERNAL Ref<Storage> part_of(const Ref<Storage>& whole, std::size_t offset, std::size_t bytes);

}  // namespace mezzo
