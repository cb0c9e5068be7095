// Ranges of the calling thread in NVTX's domain "mezzo". In builds without NVTX's header both functions do
// nothing.
#pragma once

namespace mezzo::insight {

void nvtx_push(const char* name) noexcept;
void nvtx_pop() noexcept;

}  // namespace mezzo::insight
