// Division of indices by a divisor that the host has prepared, without the dozens of instructions of a
// division.
#pragma once

#include <cstdint>

#include "cuda/kernel.cuh"

namespace mezzo::cuda {

// n / divisor for 0 <= n < 2^31 and 1 <= divisor < 2^31 (Granlund and Montgomery, "Division by invariant
// integers using multiplication").
struct FastDivide {
    std::uint32_t divisor = 1, factor = 1, shift = 0;

    FastDivide() = default;
    explicit FastDivide(std::int64_t by) : divisor(static_cast<std::uint32_t>(by)) {
        while ((std::uint64_t(1) << shift) < divisor) ++shift;
        const std::uint64_t rest = (std::uint64_t(1) << shift) - divisor;
        factor = static_cast<std::uint32_t>((rest << 32) / divisor + 1);
    }
    __device__ int size() const { return static_cast<int>(divisor); }
    __device__ int operator()(int n) const {
        const auto value = static_cast<std::uint32_t>(n);
        return static_cast<int>((__umulhi(value, factor) + value) >> shift);
    }
};

}  // namespace mezzo::cuda
