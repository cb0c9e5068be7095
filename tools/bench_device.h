// Counters of the CUDA backend that the public headers do not have. In a build without CUDA all are 0.
#pragma once

#include <cstdint>
#include <string>

#ifdef MEZZO_HAVE_CUDA
#include "cuda/elementwise/copies.h"
#include "cuda/gemm/fallbacks.h"
#include "cuda/runtime/runtime.h"
#endif

// Counts since the start of the process: kernels and graphs launched, waits of the host, copies between host
// and device with their bytes.
struct Asked {
    double launches = 0, host_syncs = 0;
    // copies to the device, by kind of host memory
    double pinned = 0, pinned_bytes = 0, pageable = 0, pageable_bytes = 0;
    double to_host = 0, to_host_bytes = 0;
};

inline Asked asked() {
#ifdef MEZZO_HAVE_CUDA
    const mezzo::cuda::Counters counters = mezzo::cuda::counters();
    const mezzo::cuda::HostCopies copies = mezzo::cuda::host_copies();
    return {double(counters.launches),    double(counters.host_syncs),   double(copies.pinned.count),
            double(copies.pinned.bytes),  double(copies.pageable.count), double(copies.pageable.bytes),
            double(copies.to_host.count), double(copies.to_host.bytes)};
#else
    return {};
#endif
}

// Returns the difference of two readings, per step.
inline Asked per_step(const Asked& before, const Asked& after, double steps) {
    const auto mean = [steps](double from, double to) { return (to - from) / steps; };
    return {mean(before.launches, after.launches), mean(before.host_syncs, after.host_syncs),
            mean(before.pinned, after.pinned),     mean(before.pinned_bytes, after.pinned_bytes),
            mean(before.pageable, after.pageable), mean(before.pageable_bytes, after.pageable_bytes),
            mean(before.to_host, after.to_host),   mean(before.to_host_bytes, after.to_host_bytes)};
}

// Matrix products that cuBLASLt should have computed and did not: mezzo's plain kernel did, many times
// slower.
struct Fallbacks {
    std::uint64_t products = 0, invalid = 0;
    std::string last;  // product and reason of the last one
};

inline Fallbacks fallbacks() {
#ifdef MEZZO_HAVE_CUDA
    const mezzo::cuda::GemmFallbacks seen = mezzo::cuda::gemm_fallbacks();
    return {seen.products, seen.invalid, seen.last};
#else
    return {};
#endif
}
