// Ranges of NVTX's domain "mezzo", of the calling thread. In builds without NVTX's header they are not there.
#pragma once

namespace mezzo::insight {

void nvtx_push(const char* name) noexcept;
void nvtx_pop() noexcept;

}  // namespace mezzo::insight
