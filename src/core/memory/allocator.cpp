#include "core/memory/allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/memory/free_list.h"
#include "core/step_recorder.h"
#include "core/tensor_impl.h"

#ifdef MEZZO_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace mezzo {
namespace {

constexpr std::size_t mebibyte = std::size_t(1) << 20;
constexpr std::size_t granularity = 512;
constexpr std::size_t small_limit = mebibyte;
constexpr std::size_t small_segment = 2 * mebibyte;
// Segment size for requests above 1 MiB and below 10 MiB; larger ones get a segment of their own size,
// rounded up to 2 MiB. Blocks of 2, 3, 4, 6 or 8 MiB fill it without a remainder.
constexpr std::size_t large_segment = 24 * mebibyte;
constexpr int most_spares = 1024;

std::size_t segment_size(std::size_t size) {
    if (size <= small_limit) return small_segment;
    if (size < 10 * mebibyte) return large_segment;
    return (size + small_segment - 1) / small_segment * small_segment;
}

// With AddressSanitizer, bytes beyond the request and freed blocks are poisoned on the CPU, so that it
// reports a kernel that accesses a neighbour in its tensor's segment. Memory of other devices cannot be
// poisoned; there every block is a system allocation of its own, so that it reports the same on an emulated
// device.
#ifdef MEZZO_ASAN
bool keeps_blocks(Device device) { return device.type() == DeviceType::cpu; }
void poison(const Block* block) {
    if (block->device.type() == DeviceType::cpu) __asan_poison_memory_region(block->address, block->size);
}
void unpoison(const Block* block, std::size_t bytes) {
    if (block->device.type() == DeviceType::cpu) __asan_unpoison_memory_region(block->address, bytes);
}
#else
bool keeps_blocks(Device) { return true; }
void poison(const Block*) {}
void unpoison(const Block*, std::size_t) {}
#endif

void raise_to(std::atomic<std::size_t>& peak, std::size_t value) {
    std::size_t seen = peak.load(std::memory_order_relaxed);
    while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

// Tensors of static lifetime may outlive the main thread's caches.
thread_local bool caches_closed = false;

// Small blocks that this thread freed, by size: they are reused without a lock or a search. Only for the
// first device of each type.
class FrontCache {
public:
    ~FrontCache() {
        flush();
        caches_closed = true;
    }
    Block* take(std::size_t size) {
        const std::size_t slot = size / granularity;
        if (slot >= slots || heads_[slot] == nullptr) return nullptr;
        Block* block = heads_[slot];
        heads_[slot] = block->next_cached;
        bytes_ -= size;
        return block;
    }
    bool put(Block* block) {
        const std::size_t slot = block->size / granularity;
        if (slot >= slots || bytes_ + block->size > limit) return false;
        block->next_cached = heads_[slot];
        heads_[slot] = block;
        bytes_ += block->size;
        return true;
    }
    void flush() noexcept {
        for (Block*& head : heads_)
            while (head != nullptr) {
                Block* block = head;
                head = block->next_cached;
                block->owner->return_to_pool(block);
            }
        bytes_ = 0;
    }

private:
    static constexpr std::size_t limit = 2 * mebibyte;
    static constexpr std::size_t slots = 129;  // blocks up to 64 KiB
    Block* heads_[slots] = {};
    std::size_t bytes_ = 0;
};

FrontCache* front_cache(Device device) {
    if (caches_closed) return nullptr;
    thread_local FrontCache caches[device_type_count];
    return device.index == 0 && keeps_blocks(device) ? &caches[static_cast<int>(device.type())] : nullptr;
}

std::string in_bytes(std::size_t bytes) {
    return bytes < mebibyte ? fmt::format("{} bytes", bytes)
                            : fmt::format("{} bytes ({:.1f} MiB)", bytes, double(bytes) / double(mebibyte));
}

}  // namespace

std::size_t block_size(std::size_t bytes) { return (bytes + granularity - 1) / granularity * granularity; }

Block* CachingAllocator::allocate(std::size_t bytes) {
    if (bytes > PTRDIFF_MAX) out_of_memory(bytes);
    const std::size_t size = block_size(bytes);
    FrontCache* front = front_cache(device_);
    Block* block = front != nullptr ? front->take(size) : nullptr;
    if (block == nullptr) {
        std::unique_lock lock(mutex_);
        block = take(size);
        if (block == nullptr) block = take_segment(bytes, segment_size(size));
        if (block == nullptr) {
            // Blocks of the front cache may be joined to one that fits, and the system may still have a
            // segment of the requested size only.
            lock.unlock();
            if (front != nullptr) front->flush();
            lock.lock();
            block = take(size);
            if (block == nullptr) release_segments();
            if (block == nullptr) block = take_segment(bytes, segment_size(size));
            if (block == nullptr) block = take_segment(bytes, size);
        }
        if (block == nullptr) {
            lock.unlock();
            out_of_memory(bytes);
        }
    }
    unpoison(block, bytes);
    count_allocation(size);
    return block;
}

void CachingAllocator::release(Block* block) noexcept {
    allocated_.fetch_sub(block->size, std::memory_order_relaxed);
    poison(block);
    FrontCache* front = front_cache(device_);
    if (front == nullptr || !front->put(block)) return_to_pool(block);
}

void CachingAllocator::return_to_pool(Block* block) noexcept {
    const std::lock_guard lock(mutex_);
    put(block);
    if (!keeps_blocks(device_)) release_segments();
}

void CachingAllocator::count_allocation(std::size_t size) {
    allocations_.fetch_add(1, std::memory_order_relaxed);
    raise_to(max_allocated_, allocated_.fetch_add(size, std::memory_order_relaxed) + size);
}

Block* CachingAllocator::take(std::size_t size) {
    BlockPool& free_blocks = pool(size <= small_limit);
    const auto found = free_blocks.lower_bound(size);
    if (found == free_blocks.end()) return nullptr;
    Block* block = *found;
    std::unique_ptr<Block> rest = block->size > size ? new_block() : nullptr;
    block->place = free_blocks.extract(found);
    block->free = false;
    if (rest) split(block, size, std::move(rest));
    return block;
}

Block* CachingAllocator::take_segment(std::size_t bytes, std::size_t segment) {
    const std::size_t size = block_size(bytes);
    if (!keeps_blocks(device_)) segment = size;
    if (limit_ != 0 && (segment > limit_ || reserved_ > limit_ - segment)) return nullptr;
    std::unique_ptr<Block> first = new_block(), rest = segment > size ? new_block() : nullptr;
    void* memory = backend_.allocate(device_.index, keeps_blocks(device_) ? segment : bytes);
    if (memory == nullptr) return nullptr;
    ++system_allocations_;
    reserved_ += segment;
    max_reserved_ = std::max(max_reserved_, reserved_);
    Block* block = first.release();
    block->address = static_cast<char*>(memory);
    block->size = segment;
    block->small = size <= small_limit;
    poison(block);
    if (rest) split(block, size, std::move(rest));
    return block;
}

// A block without memory, in no pool. Callers make it before they change anything, because this may throw.
std::unique_ptr<Block> CachingAllocator::new_block() {
    if (spare_ != nullptr) {
        --spares_;
        std::unique_ptr<Block> block(std::exchange(spare_, spare_->next_cached));
        block->next_cached = block->previous = block->next = nullptr;
        return block;
    }
    auto block = std::make_unique<Block>();
    block->owner = this;
    block->device = device_;
    BlockPool alone;
    block->place = alone.extract(alone.insert(block.get()).first);
    return block;
}

// Cuts a block that is in no pool to `size`; `other` becomes the rest, a free block.
void CachingAllocator::split(Block* block, std::size_t size, std::unique_ptr<Block> other) {
    Block* rest = other.release();
    rest->address = block->address + size;
    rest->size = block->size - size;
    rest->small = block->small;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->previous = rest;
    block->next = rest;
    block->size = size;
    rest->free = true;
    pool(rest->small).insert(std::move(rest->place));
}

// Keeps the object of a block that was joined to another, for new_block().
void CachingAllocator::keep_spare(Block* block) noexcept {
    if (spares_ == most_spares) {
        delete block;
        return;
    }
    block->free = false;
    block->address = nullptr;
    block->next_cached = std::exchange(spare_, block);
    ++spares_;
}

// Joins two neighbours, which are in no pool, into the first.
Block* CachingAllocator::join(Block* first, Block* second) {
    first->size += second->size;
    first->next = second->next;
    if (first->next != nullptr) first->next->previous = first;
    keep_spare(second);
    return first;
}

void CachingAllocator::put(Block* block) {
    BlockPool& free_blocks = pool(block->small);
    if (Block* next = block->next; next != nullptr && next->free) {
        next->place = free_blocks.extract(next);
        block = join(block, next);
    }
    if (Block* previous = block->previous; previous != nullptr && previous->free) {
        previous->place = free_blocks.extract(previous);
        block = join(previous, block);
    }
    block->free = true;
    free_blocks.insert(std::move(block->place));
}

// Releases every segment that consists of one free block to the system.
void CachingAllocator::release_segments() {
    for (BlockPool& free_blocks : pools_)
        for (auto it = free_blocks.begin(); it != free_blocks.end();) {
            Block* block = *it;
            if (block->previous != nullptr || block->next != nullptr) {
                ++it;
                continue;
            }
            it = free_blocks.erase(it);
            unpoison(block, block->size);
            reserved_ -= block->size;
            backend_.release(device_.index, block->address);
            delete block;
        }
}

std::size_t CachingAllocator::largest_free() const {
    std::size_t largest = 0;
    for (const BlockPool& free_blocks : pools_)
        if (!free_blocks.empty()) largest = std::max(largest, (*free_blocks.rbegin())->size);
    return largest;
}

MemoryStats CachingAllocator::stats() {
    if (FrontCache* front = front_cache(device_)) front->flush();
    const std::lock_guard lock(mutex_);
    return {.allocated = allocated_.load(),
            .max_allocated = max_allocated_.load(),
            .reserved = reserved_,
            .max_reserved = max_reserved_,
            .largest_free = largest_free(),
            .allocations = allocations_.load(),
            .system_allocations = system_allocations_};
}

void CachingAllocator::reset_peak() {
    const std::lock_guard lock(mutex_);
    max_allocated_ = allocated_.load();
    max_reserved_ = reserved_;
}

void CachingAllocator::empty_cache() {
    if (FrontCache* front = front_cache(device_)) front->flush();
    const std::lock_guard lock(mutex_);
    release_segments();
    while (spare_ != nullptr) delete std::exchange(spare_, spare_->next_cached);
    spares_ = 0;
}

void CachingAllocator::set_limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
}

bool CachingAllocator::has_room(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return limit_ == 0 || (bytes <= limit_ && reserved_ <= limit_ - bytes);
}

void CachingAllocator::out_of_memory(std::size_t bytes) {
    const MemoryStats now = stats();
    std::size_t limit = 0;
    {
        const std::lock_guard lock(mutex_);
        limit = limit_;
    }
    fail(ErrorKind::memory, "allocate: out of memory on ", device_, ": requested ", in_bytes(bytes),
         "; allocated ", in_bytes(now.allocated), ", peak ", in_bytes(now.max_allocated), ", reserved ",
         in_bytes(now.reserved), ", largest free block ", in_bytes(now.largest_free), ", limit ",
         limit != 0 ? in_bytes(limit) : std::string("none"),
         "; free tensors, use smaller batches or checkpoint()");
}

namespace {

constexpr int max_devices = 64;  // of one type

// Leaked: tensors of static lifetime release their blocks late.
std::atomic<CachingAllocator*> allocators[device_type_count][max_devices];

CachingAllocator& make_allocator(Device device) {
    static std::mutex mutex;
    const Backend& found = backend_of("allocate", device);
    check(device.index < max_devices, ErrorKind::device, "allocate: ", device, " is beyond the ", max_devices,
          " devices that are supported");
    auto& slot = allocators[static_cast<int>(device.type())][device.index];
    const std::lock_guard lock(mutex);
    if (slot.load() == nullptr) slot = new CachingAllocator(found, device);
    return *slot.load();
}

}  // namespace

CachingAllocator& allocator(Device device) {
    if (int(device.type()) < device_type_count && device.index >= 0 && device.index < max_devices) {
        auto& slot = allocators[static_cast<int>(device.type())][device.index];
        if (CachingAllocator* found = slot.load(std::memory_order_acquire)) return *found;
    }
    return make_allocator(device);
}

MemoryStats memory_stats(Device device) { return allocator(device).stats(); }
void reset_peak(Device device) { allocator(device).reset_peak(); }
void empty_cache(Device device) {
    refuse_in_capture("empty_cache", device, "give memory back to the system");
    allocator(device).empty_cache();
}
void set_memory_limit(Device device, std::size_t bytes) { allocator(device).set_limit(bytes); }

}  // namespace mezzo
