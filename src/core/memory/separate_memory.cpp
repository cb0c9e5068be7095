#include "core/memory/separate_memory.h"

#include "mezzo/error.h"

namespace mezzo {

SeparateMemory::SeparateMemory(Device device, std::size_t bytes)
    : MemoryHook(device), backend_(backend_of("allocate", device)), bytes_(bytes) {
    check(allocator(device).has_room(bytes), ErrorKind::memory, "allocate: the memory limit leaves no ",
          bytes, " bytes");
    memory_ = static_cast<char*>(backend_.allocate(device.index, bytes));
    check(memory_ != nullptr, ErrorKind::memory, "allocate: ", device, " has no ", bytes, " bytes left");
}

SeparateMemory::~SeparateMemory() {
    try {
        backend_.release(device_.index, memory_);
    } catch (...) {  // the device has failed, and the next call throws
    }
}

// Memory is not reused, so that late or out-of-bounds writes of one kernel do not corrupt the tensors of
// another.
Block* SeparateMemory::allocate(std::size_t bytes) {
    const std::size_t size = block_size(bytes);
    check(size <= bytes_ - used_, ErrorKind::memory, "allocate: ", bytes, " bytes are more than the ",
          bytes_ - used_, " that are left of separate memory");
    auto* block = new Block;
    block->address = memory_ + used_;
    block->size = size;
    used_ += size;
    return block;
}

}  // namespace mezzo
