// The GEMM library behind gemm(): cuBLASLt on a GPU, a stand-in in the emulated tests. Column-major, as BLAS
// is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mezzo/dtype.h"

namespace mezzo::cuda::lt {

enum class Epilogue : std::uint8_t { none, bias, relu, relu_bias, gelu_tanh, gelu_tanh_bias };
constexpr bool has_bias(Epilogue e) {
    return e == Epilogue::bias || e == Epilogue::relu_bias || e == Epilogue::gelu_tanh_bias;
}

// D[m,n] = epilogue(alpha op(A)[m,k] op(B)[k,n] + beta D + bias[m]), column-major, for each of `batch`
// matrices that lie stride elements apart. Everything that the choice of an algorithm may depend on, so also
// the key of a plan.
struct Problem {
    std::int64_t m = 0, n = 0, k = 0;
    std::int64_t lda = 0, ldb = 0, ldd = 0;
    std::int64_t batch = 1, stride_a = 0, stride_b = 0, stride_d = 0;
    int device = 0;
    std::uint16_t align_a = 256, align_b = 256, align_d = 256,
                  align_bias = 256;                              // bytes, of the real pointers
    Dtype a_type = float32, b_type = float32, d_type = float32;  // the bias has D's type
    bool trans_a = false, trans_b = false;
    Epilogue epilogue = Epilogue::none;
    bool tf32 = false;  // float32 operands may be rounded to TF32
    bool beta_is_zero = true;

    friend bool operator==(const Problem&, const Problem&) = default;
};

struct Algo {
    std::uint64_t data[8] = {};
    std::size_t workspace = 0;  // bytes it needs
};

struct Operands {
    const void *a = nullptr, *b = nullptr, *bias = nullptr;
    void* d = nullptr;
    double alpha = 1, beta = 0;  // rounded to float unless the problem is float64
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
};

// A problem's descriptors, made once.
struct Plan;
std::shared_ptr<Plan> make_plan(const Problem& problem);

// Algorithms for the plan, the one that is expected to be fastest first. None is a normal answer.
std::vector<Algo> heuristics(Plan& plan, const void* bias, std::size_t max_workspace, int max_count);

// Enqueues the GEMM on the current stream. False if the library refuses the algorithm: take the next.
bool run(Plan& plan, const Algo& algo, const Operands& operands);

}  // namespace mezzo::cuda::lt
