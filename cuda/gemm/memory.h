// Device memory of the GEMM service. It comes from the caching allocator, so that statistics and limits cover
// it, but it is no part of the memory plan of a step that is being traced.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/memory/allocator.h"
#include "core/step_recorder.h"
#include "cuda/runtime/runtime.h"

namespace mezzo::cuda {

inline Block* gemm_block(int device, std::size_t bytes) {
    refuse_in_capture("gemm", "take memory for a product");
    return allocator(Device(DeviceType::cuda, device)).allocate(bytes);
}

// Memory of the current device for the lifetime of the object. Throws Error(memory).
struct GemmScratch {
    Block* const block;
    void* const memory;
    explicit GemmScratch(std::int64_t bytes)
        : block(gemm_block(current_device(), static_cast<std::size_t>(bytes))), memory(block->address) {}
    GemmScratch(const GemmScratch&) = delete;
    GemmScratch& operator=(const GemmScratch&) = delete;
    ~GemmScratch() { block->owner->release(block); }
};

}  // namespace mezzo::cuda
