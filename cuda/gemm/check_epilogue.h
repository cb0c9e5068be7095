// Check that an epilogue of the GEMM library computes as accurately as the result's dtype allows.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/gemm_plan.h"
#include "mezzo/dtype.h"

namespace mezzo::cuda {

struct GemmService;

// Whether the algorithm adds a bias before it rounds to 16 bit (some that split k do not), passes NaN through
// relu, and applies gelu_tanh or its derivative with the accuracy of accuracy_of(). Shown by a product of
// 128 x 64 values with the problem's k, once per algorithm and kind of problem, whatever m and n are. Throws
// Error(memory) when there is no memory for the check.
bool has_right_epilogue(GemmService& s, const gemm_plan::Problem& problem, const gemm_plan::Algo& algo);

// Whether the epilogue applies gelu_tanh, not its derivative.
bool applies_gelu(gemm_plan::Epilogue e);

// Bytes of an epilogue's aux: a mask, a matrix of the result's size, or 1 if it has none.
std::int64_t aux_bytes(const gemm_plan::Problem& p, std::int64_t matrix_bytes);

// Allowed error of an activation: the unit roundoff of the result's dtype, twice, and `activation` times the
// argument, or 4 times `activation` for a derivative. For 16 bit this admits the GPU's instruction for tanh,
// whose relative error is 2^-11; for float32 it does not.
struct Accuracy {
    double roundoff, activation;
};
constexpr Accuracy accuracy_of(Dtype result) {
    switch (result) {
        case float16:
            return {0x1p-11, 0x1p-11};
        case bfloat16:
            return {0x1p-8, 0x1p-11};
        case float64:
            return {0x1p-53, 0x1p-50};
        default:
            return {0x1p-24, 0x1p-21};
    }
}

// One product that tests an epilogue. Its matrices are column-major, with the names of gemm_plan::Problem.
struct EpilogueTrial {
    enum class Shows : std::uint8_t {
        // Whether a bias is added before the sum is rounded: the sums are `sum` or -sum, which has no 16-bit
        // value, but has one with the bias. A row of NaN shows whether relu keeps it.
        rounding,
        // The activation, or its derivative by aux, at arguments in [-6, 6].
        activation,
    };
    Shows shows;
    Activation activation;
    bool is_gradient, has_bias, keeps;  // keeps: aux gets the value before the activation
    Dtype type, d_type;                 // of A and B; of the rest
    bool is_float8;                     // A and B are codes with factors of fill_scales()
    bool trans_a, trans_b;
    std::int64_t m, n, k, lda, ldb, ldd;
    std::int64_t sum;
    Accuracy accuracy;
    void *a, *b, *bias, *d, *aux;
};

// Fills the operands, and the memory that the product is to write with NaN.
void fill_trial(const EpilogueTrial& trial);

// Adds the number of wrong results to *count on the device.
void add_wrong_results(const EpilogueTrial& trial, unsigned long long* count);

}  // namespace mezzo::cuda
