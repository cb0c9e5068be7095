// Caching allocator of one device. It takes segments from the system, cuts them into blocks, and keeps freed
// blocks for reuse.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "core/backend.h"
#include "core/internal.h"
#include "core/memory/storage.h"

namespace mezzo {

class CachingAllocator;
struct Block;

struct BlocksBySize {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const;
    bool operator()(const Block* a, std::size_t size) const;
};
using BlockPool = std::set<Block*, BlocksBySize>;

// A piece of a segment. It is also the Storage that tensors share while the block is live, so that making a
// tensor's storage needs no allocation on the host.
struct Block : Storage {
    CachingAllocator* owner = nullptr;  // null: the storage of an empty tensor, or a part of another storage
    Ref<Storage> arena;                 // the storage that it is a part of
    char* address = nullptr;
    std::size_t size = 0;       // multiple of 512
    Block* previous = nullptr;  // neighbours in the segment
    Block* next = nullptr;
    Block* next_cached = nullptr;  // in a thread's front cache or in HeldBlocks
    // Set node of the block while it is in no pool, so that returning it to a pool allocates nothing.
    BlockPool::node_type place;
    bool free = false;                   // in a pool
    bool small = false;                  // which pool
    bool part = false;                   // made by part_of()
    void (*give_back)(void*) = nullptr;  // of borrowed memory: called with `lender` after the last reference
    void* lender = nullptr;
    std::uint32_t number = 0;  // among the allocations of a step (capture/step_memory.h)
};

inline bool BlocksBySize::operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
}
inline bool BlocksBySize::operator()(const Block* a, std::size_t size) const { return a->size < size; }

// Blocks of at most 1 MiB come from 2 MiB segments, those below 10 MiB from 24 MiB segments; larger ones get
// segments of their own. A free block is found by best fit, cut to size, and joined with its free neighbours
// when it is released. All members may be called from any thread.
class MEZZO_INTERNAL CachingAllocator {
public:
    CachingAllocator(const Backend& backend, Device device) : backend_(backend), device_(device) {}
    CachingAllocator(const CachingAllocator&) = delete;
    CachingAllocator& operator=(const CachingAllocator&) = delete;

    // A live block of at least `bytes` > 0, from the thread's front cache, a pool or the system; throws
    // Error(memory).
    Block* allocate(std::size_t bytes);
    void release(Block* block) noexcept;

    MemoryStats stats();
    void reset_peak();
    void empty_cache();
    void set_limit(std::size_t bytes);
    // Whether the limit allows `bytes` more than what is reserved already.
    bool has_room(std::size_t bytes);

    // Takes a block that leaves a thread's front cache.
    void return_to_pool(Block* block) noexcept;

private:
    BlockPool& pool(bool small) { return pools_[small ? 0 : 1]; }
    Block* take(std::size_t size);                                // from a pool; null if none fits
    Block* take_segment(std::size_t bytes, std::size_t segment);  // from the system; null if it has none
    std::unique_ptr<Block> new_block();
    void keep_spare(Block* block) noexcept;
    void split(Block* block, std::size_t size, std::unique_ptr<Block> rest);
    Block* join(Block* first, Block* second);
    void put(Block* block);
    void release_segments();
    std::size_t largest_free() const;
    void count_allocation(std::size_t size);
    [[noreturn]] void out_of_memory(std::size_t bytes);

    const Backend& backend_;
    const Device device_;
    std::mutex mutex_;  // guards all members that are not atomic
    BlockPool pools_[2];
    Block* spare_ = nullptr;  // blocks that were joined to others, for the next ones that are cut off
    int spares_ = 0;
    std::size_t reserved_ = 0, max_reserved_ = 0, limit_ = 0;
    std::uint64_t system_allocations_ = 0;
    std::atomic<std::size_t> allocated_{0}, max_allocated_{0};
    std::atomic<std::uint64_t> allocations_{0};
};

// The size of the block that serves a request for `bytes`. Statistics count it.
std::size_t block_size(std::size_t bytes);

// The allocator of a device; throws Error(device) if the device is not there.
MEZZO_INTERNAL CachingAllocator& allocator(Device device);

}  // namespace mezzo
