// Settings that tests make in the stand-in for cuBLASLt, and its counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "cuda/gemm/lt.h"

namespace mezzo::emulation {

struct FakeLt {
    bool no_fused = false;                 // no algorithm for any epilogue but Epilogue::none
    bool no_algorithm = false;             // no algorithm at all
    int failing = 0;                       // so many of the first candidates do not execute
    int status_of_failing = 15;            // what they say: CUBLAS_STATUS_NOT_SUPPORTED
    int dropping_tail = 0;                 // so many of the first candidates drop the last k % 32 terms
    int dropping_last = 0;                 // so many of the first candidates drop the last term of any k
    bool forgets_aux = false;              // aux is not written
    std::set<cuda::lt::Epilogue> refused;  // no algorithm for these
    // Planted faults of masks: the order of bits or rows, what counts for a 0 or a NaN, or an epilogue that
    // does not read the mask.
    enum class Mask { right, big_endian, packed, transposed, zero_is_positive, nan_is_zero, ignored };
    Mask mask = Mask::right;
    // Planted faults of a bias's gradient: it is added to what is there, lacks a row, or is rounded
    // to 16 bit; or, for bgrad_b, the sums have another order.
    enum class BiasGrad { right, added, short_of_a_row, rounded, permuted };
    BiasGrad bias_grad = BiasGrad::right;
    // Planted faults of float8 scales: they are left out, divide, multiply the bias, too, or A's rows or
    // blocks all have the first one. For blocks alone: they are read in rows instead of tiles, or the tiles
    // in the other order.
    enum class Scale { right, ignored, divides, first, after_bias, in_rows, tiles_down };
    Scale scale = Scale::right;
    bool half_slope = false;  // gelu_tanh has the derivative 1/2 everywhere below 1
    // GELU and its derivative with an exact tanh. The library promises no accuracy; the default is as coarse
    // as the GPU's instruction for tanh.
    bool precise_gelu = false;
    bool shifted_slope = false;  // gelu_tanh's derivative is that of an argument 1/16 above
    bool relu_drops_nan = false;
    int rounding_bias = 0;  // so many of the first candidates round to D's type before they add a bias
    // Bytes the candidates ask for; if not given, what their sums take from k = 64 on, and none below.
    std::optional<std::size_t> workspace;
    // Device memory that a call takes for itself; where there is less, its status is
    // CUBLAS_STATUS_ALLOC_FAILED.
    std::size_t handle_bytes = 0, heuristic_bytes = 0, matmul_bytes = 0;
    int create_status = 0;    // of cublasLtCreate, if it is to fail
    int status_of_none = 15;  // of the heuristic where it has no algorithm: CUBLAS_STATUS_NOT_SUPPORTED
    double ms[3] = {};        // by which a run of a candidate moves the emulated clock
    double fused_ms = 0;      // more if it has an epilogue
    double aux_ms = 0;        // more if it has aux
    double bias_grad_ms = 0;  // more if it has the gradient of a bias
    // The last candidate is proposed first where all operands consist of whole 16 bytes.
    bool vector_algorithm = false;
    // Configurations that heuristics() does not propose, by number: milliseconds of a run, negative where the
    // library does not take it; two families share them.
    std::vector<double> hidden_ms;
    int hidden_dropping = -1;  // the one that drops the last term
    std::uint64_t version = 130100;
    std::function<void(const cuda::lt::Operands&)> on_run;   // called by each run that succeeded
    std::function<bool(const cuda::lt::Problem&)> executes;  // if set, whether runs of this problem succeed

    int plans = 0, heuristics = 0, configurations = 0, runs = 0, failed_runs = 0;
    int last_algorithm = -1;         // candidate number of the last run that succeeded
    cuda::lt::Problem last_problem;  // of the last run that succeeded
    const void* last_workspace = nullptr;
    cuda::lt::Operands last_operands;         // of the last run that succeeded
    std::vector<cuda::lt::Problem> problems;  // that algorithms were asked for
};
inline FakeLt fake_lt;

}  // namespace mezzo::emulation
