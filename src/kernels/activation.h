// The activations a GEMM may apply to its result before it is stored.
#pragma once

#include <cstdint>

namespace mezzo {

// gelu is x * Phi(x) by erf, gelu_tanh its tanh approximation (Hendrycks & Gimpel, arXiv 1606.08415).
enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh };

// A ReLU mask: one bit per element of a row-major matrix, set where the result is positive, the first of a
// byte in its least significant bit. Rows begin this many bits apart: a multiple of 128, as GEMM libraries want.
constexpr std::int64_t relu_mask_ld(std::int64_t columns) { return (columns + 127) / 128 * 128; }
constexpr std::int64_t relu_mask_bytes(std::int64_t rows, std::int64_t columns) {
    return rows * relu_mask_ld(columns) / 8;
}

}  // namespace mezzo
