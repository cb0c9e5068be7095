#include "tests/ptx/exact_allocations.h"

#include "mezzo/error.h"
#include "tests/ptx/device_memory.h"

namespace mezzo::ptx {

Block* ExactAllocations::allocate(std::size_t bytes) {
    void* const memory = ptx::allocate(bytes);
    check(memory != nullptr, ErrorKind::memory, "allocate: ", device_, " has no ", bytes, " bytes left");
    auto* const block = new Block;
    block->address = static_cast<char*>(memory);
    block->size = block_size(bytes);
    block->give_back = [](void* lender) { release(lender); };
    block->lender = memory;
    return block;
}

}  // namespace mezzo::ptx
