// A reference-counted block of device memory from the caching allocator.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/ref.h"
#include "mezzo/device.h"

namespace mezzo {

struct Storage {
    std::atomic<std::uint32_t> refs{0};
    Device device;
    void* data = nullptr;
    std::size_t bytes = 0;
    std::atomic<std::uint64_t> version{0};     // grows with every in-place write
    std::uint64_t zeroed = ~std::uint64_t(0);  // the version in which every element was set to zero, if any
};
void dispose(Storage* storage) noexcept;

// A block of at least `bytes`, 256-byte aligned (zero bytes: no block). Out of memory: releases the cache,
// retries, then throws Error(memory) with requested, current, peak, reserved and largest free block.
Ref<Storage> allocate_storage(std::size_t bytes, Device device);
// A part of a block as a storage of its own: with its own version and references, and holding the block.
Ref<Storage> part_of(const Ref<Storage>& whole, std::size_t offset, std::size_t bytes);

}  // namespace mezzo
