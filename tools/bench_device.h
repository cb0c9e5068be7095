// What bench asks of the CUDA backend beyond the public headers. In a build without it there is nothing to
// count.
#pragma once

#include <cstdint>
#include <string>

#ifdef MEZZO_HAVE_CUDA
#include "cuda/gemm/fallbacks.h"
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

// The matrix products of the process that cuBLASLt should have computed and did not: mezzo's plain kernel
// did, many times slower.
struct Fallbacks {
    std::uint64_t products = 0, invalid = 0;
    std::string last;  // the last one's product and reason
};

inline Fallbacks fallbacks() {
#ifdef MEZZO_HAVE_CUDA
    const mezzo::cuda::GemmFallbacks seen = mezzo::cuda::gemm_fallbacks();
    return {seen.products, seen.invalid, seen.last};
#else
    return {};
#endif
}
