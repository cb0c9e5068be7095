// Device memory: kernels reach what has been allocated and nothing else. Each byte knows whether it has been
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mezzo::ptx {

struct Range {
    std::uint64_t begin, end;
    std::unique_ptr<std::uint8_t[]> written;
};

// Filled with 0xFF; null beyond options.device_memory.
void* allocate(std::size_t bytes);
// False if nothing has been allocated there.
bool release(void* memory);
// The allocation that holds the address, or null.
const Range* find_range(std::uint64_t address);
bool is_device_memory(const void* memory, std::size_t bytes);
void mark_written(const void* to, std::size_t bytes);
// After a copy within device memory.
void copy_marks(const void* to, const void* from, std::size_t bytes);

}  // namespace mezzo::ptx
