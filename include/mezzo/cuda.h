// Settings of the CUDA backend. Everything here may be called in a build without CUDA, too.
//
//   cuda::load_gemm_plans("plans.json");  // of an earlier run
//   cuda::set_gemm_options({.autotune = true});
//   loss = train(x, labels);
//   cuda::save_gemm_plans("plans.json");
#pragma once

#include <cstddef>
#include <string>

#include "mezzo/cpp20.h"
#include "mezzo/fast_path.h"

#pragma GCC visibility push(default)

namespace mezzo::cuda {

// Options of matrix products.
struct GemmOptions {
    // Times the algorithms of a product at its first use, and takes the fastest that passes a check of its
    // sums; also chooses whether bias and activation are fused into the product or computed by a kernel after
    // it. Costs some milliseconds per product and, meanwhile, device memory of twice the L2 cache. Nothing is
    // timed while a stream is being captured. Different runs may choose different algorithms, whose sums
    // differ in the last bits; a plan file fixes the choice.
    bool autotune = false;
    // Algorithms to time, or to try without autotune: 1 to 64.
    int candidates = 8;
    // Fused activation/bias backward: one kernel instead of two for the gradients of linear's activation and
    // bias; likewise for mse_loss if it alone reads the result of a linear layer without an activation.
    FastPath fuse_bias_gradients = FastPath::automatic;
    // Fuses the backward of two linear layers with an activation between them, if the second one alone reads
    // the first one's result: in nn::Sequential, in the feed-forward part of a Transformer layer without
    // dropout, or in plain calls of linear(). The activation's gradient is computed in the epilogue of the
    // matrix product (autotune decides, per product) or in one kernel after it, with the bias's gradient.
    // `on` includes fuse_bias_gradients, unless that is off. The CPU always does this.
    FastPath fuse_layers = FastPath::automatic;
    // With fuse_layers: linear() with ReLU saves a mask for its gradient, one bit per value that is set if
    // the value is positive. cuBLASLt's ReLU gradient epilogues read only the mask, and mezzo's own kernel
    // reads less memory with it. It pays only if cuBLASLt writes or reads the mask, which only timing can
    // decide: `automatic` needs autotune.
    FastPath relu_masks = FastPath::automatic;
};

// Throws Error(value) if a field is out of range. Products that have run keep their algorithms. Nothing that
// runs on the CPU depends on these options.
void set_gemm_options(const GemmOptions& options);
[[nodiscard]] GemmOptions gemm_options();

// Whether convolutions on Tensor Cores may use an implicit GEMM, without the im2col matrix: float16 and
// bfloat16, one group, numbers of channels that are multiples of 8. The self-check is per dtype, separately
// for the forward pass and both gradients. May be changed at any time. Results differ in the last bits.
void set_implicit_convolution(FastPath use);
[[nodiscard]] FastPath implicit_convolution();

// Writes the plans that autotune has chosen in this process and those of load_gemm_plans(), and returns their
// number. Replaces the file atomically: at any moment it is the old one or the new one. Without plans
// (nothing was tuned, no GPU, a build without CUDA) the file is unchanged. Throws Error(io) if the file
// cannot be written, and Error(backend) if cuBLASLt cannot be opened.
std::size_t save_gemm_plans(const std::string& path);

// Numbers of plans of a file that will be used, and that were left out, by reason.
struct LoadedGemmPlans {
    std::size_t loaded = 0;         // will be used, without timing
    std::size_t other_device = 0;   // left out: made for a GPU that is not in this machine
    std::size_t other_version = 0;  // left out: made for another version of cuBLASLt
};

// Reads a file of save_gemm_plans(). Each algorithm must still pass the check of its sums before its first
// use, and is dropped if it fails. A damaged file changes nothing. Throws Error(io) if the file cannot be
// read or holds no JSON; Error(value) if it is not a plan file, a field is out of range or the checksum
// differs; Error(backend) if cuBLASLt cannot be opened.
LoadedGemmPlans load_gemm_plans(const std::string& path);

}  // namespace mezzo::cuda

#pragma GCC visibility pop
