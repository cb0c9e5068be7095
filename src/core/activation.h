// The activations a GEMM may apply to its result before it is stored.
#pragma once

#include <cstdint>

namespace mezzo {

// gelu is x * Phi(x) by erf, gelu_tanh its tanh approximation (Hendrycks & Gimpel, arXiv 1606.08415).
enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh };

}  // namespace mezzo
