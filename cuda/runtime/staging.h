// Pinned buffers from which a CUDA device copies while it works.
#pragma once

#include <cstddef>
#include <memory>

#include "core/memory/staging.h"

namespace mezzo::cuda {

// A buffer for copies to device `index`; null when there is no pinned memory.
std::unique_ptr<StagingBuffer> make_staging(int index, std::size_t bytes);

}  // namespace mezzo::cuda
