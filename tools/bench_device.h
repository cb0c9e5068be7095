// What bench asks of the CUDA backend beyond the public headers. In a build without it there is nothing to
// count.
#pragma once

#include <cstdint>

#ifdef MEZZO_HAVE_CUDA
#include "cuda/runtime.h"
#endif

// What the process has asked of CUDA devices so far: kernels and graphs launched, waits of the host.
struct Asked {
    std::uint64_t launches = 0, host_syncs = 0;
};

inline Asked asked() {
#ifdef MEZZO_HAVE_CUDA
    const mezzo::cuda::Counters counters = mezzo::cuda::counters();
    return {counters.launches, counters.host_syncs};
#else
    return {};
#endif
}
