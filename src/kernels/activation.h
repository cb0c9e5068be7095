// The activations that a GEMM may apply to its result before it stores it.
#pragma once

#include <cstdint>

namespace mezzo {

// gelu is x * Phi(x) with erf, gelu_tanh its approximation with tanh (Hendrycks & Gimpel, arXiv 1606.08415).
enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh };

// A ReLU mask has one bit per element of a row-major matrix, which is set where the result is positive. The
// least significant bit of a byte comes first. relu_mask_ld() is the distance of rows in bits: a multiple of
// 128, as GEMM libraries require.
constexpr std::int64_t relu_mask_ld(std::int64_t columns) { return (columns + 127) / 128 * 128; }
constexpr std::int64_t relu_mask_bytes(std::int64_t rows, std::int64_t columns) {
    return rows * relu_mask_ld(columns) / 8;
}

}  // namespace mezzo
