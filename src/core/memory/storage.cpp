#include <utility>

#include "core/memory/memory_hook.h"
#include "core/tensor_impl.h"

namespace mezzo {

constinit std::mutex packed_mutex;

void drop_packed(Storage& storage) {
    Ref<Storage> packed;  // is freed after the mutex has been released
    const std::lock_guard lock(packed_mutex);
    packed = std::exchange(storage.packed, {});
}

void drop_frozen16(GradMeta& meta) {
    Tensor copy;
    const std::lock_guard lock(packed_mutex);
    copy = std::exchange(meta.frozen16.value, {});
}

Ref<Storage> allocate_storage(std::size_t bytes, Device device) {
    CachingAllocator& source = allocator(device);
    MemoryHook* const hook = bytes != 0 ? MemoryHook::of(device) : nullptr;
    Block* block = hook != nullptr ? hook->allocate(bytes) : bytes != 0 ? source.allocate(bytes) : new Block;
    block->device = device;
    block->data = block->address;
    block->bytes = bytes;
    block->refs.store(0, std::memory_order_relaxed);
    block->version.store(0, std::memory_order_relaxed);
    block->zeroed = ~std::uint64_t(0);
    block->foreign = ForeignMark::wanted();
    detail::live_storages.fetch_add(1, std::memory_order_relaxed);
    return Ref<Storage>(block);
}

Ref<Storage> part_of(const Ref<Storage>& whole, std::size_t offset, std::size_t bytes) {
    auto* block = new Block;
    block->device = whole->device;
    block->foreign = whole->foreign;
    if (bytes != 0) {
        block->arena = whole;
        block->part = true;
        block->address = static_cast<char*>(whole->data) + offset;
        block->data = block->address;
        block->bytes = bytes;
        block->size = block_size(bytes);  // not 0, so that dispose() also calls a MemoryHook
    }
    detail::live_storages.fetch_add(1, std::memory_order_relaxed);
    return Ref<Storage>(block);
}

Ref<Storage> borrowed_storage(void* data, std::size_t bytes, Device device, void (*give_back)(void*),
                              void* lender) {
    auto* block = new Block;
    block->device = device;
    block->address = static_cast<char*>(data);
    block->data = data;
    block->bytes = bytes;
    block->part = true;  // no allocation of a step
    block->size = block_size(bytes);
    block->give_back = give_back;
    block->lender = lender;
    detail::live_storages.fetch_add(1, std::memory_order_relaxed);
    return Ref<Storage>(block);
}

// Every Storage is a Block: the three functions above are the only makers.
void dispose(Storage* storage) noexcept {
    auto* block = static_cast<Block*>(storage);
    if (MemoryHook* hook = block->size != 0 ? MemoryHook::of(block->device) : nullptr;
        hook != nullptr && hook->keeps(block))
        return;
    block->data = nullptr;
    block->packed = {};
    if (block->give_back != nullptr) block->give_back(block->lender);
    detail::live_storages.fetch_sub(1, std::memory_order_relaxed);
    if (block->owner != nullptr)
        block->owner->release(block);
    else
        delete block;
}

}  // namespace mezzo
