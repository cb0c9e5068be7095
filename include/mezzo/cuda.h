// Settings of the CUDA backend. Everything here may be called in a build without CUDA, too.
#pragma once

#include <cstddef>
#include <string>

#include "mezzo/cpp20.h"
#include "mezzo/fast_path.h"

#pragma GCC visibility push(default)

namespace mezzo::cuda {

// How matrix products are done.
struct GemmOptions {
    // Times the algorithms of a product when it is met for the first time, and keeps the fastest that passes
    // the check of its sums; bias and activation fused into it or done by a kernel behind it, whichever is
    // faster. Costs some milliseconds per product and, meanwhile, device memory of twice the L2 cache.
    // Nothing is timed while a stream is being captured. Runs may then choose different algorithms, whose
    // sums differ in the last bits: a plan file makes them choose alike.
    bool autotune = false;
    // Algorithms to time, or to try without autotune: 1 to 64.
    int candidates = 8;
    // The gradients of linear's activation and of its bias in one kernel instead of two; the same where
    // mse_loss alone reads the result of a linear layer without an activation.
    FastPath fuse_bias_gradients = FastPath::automatic;
    // A linear layer that alone reads the result of another one with an activation, in nn::Sequential, in the
    // feed-forward part of a Transformer layer without dropout or in plain calls of linear(), takes the
    // gradient of that hidden value through the activation in the matrix product that makes it (autotune
    // decides, per product) or in one kernel behind it, with the bias's gradient. `on` includes
    // fuse_bias_gradients, unless that is off. On the CPU the same is done in any case.
    FastPath fuse_layers = FastPath::automatic;
    // With fuse_layers: linear() with ReLU also stores for its gradient which values are positive, one bit
    // each. The library's gradient epilogues of ReLU read nothing else, and the kernel that does their work
    // otherwise reads less. They pay only where the library makes or reads them, which only timing finds out:
    // `automatic` takes part with autotune alone.
    FastPath relu_masks = FastPath::automatic;
};

// Throws Error(value) if a field is out of range. Products that have been met keep their algorithms. Nothing
// that runs on the CPU depends on these options.
void set_gemm_options(const GemmOptions& options);
[[nodiscard]] GemmOptions gemm_options();

// Whether convolutions may read images in place on Tensor Cores, instead of a matrix of windows and a matrix
// product: float16 and bfloat16, one group, numbers of channels that are multiples of 8. Proven per dtype;
// forward pass and both gradients apart. May be changed at any time. Results differ in the last bits.
void set_implicit_convolution(FastPath use);
[[nodiscard]] FastPath implicit_convolution();

// Writes what autotune has chosen in this process and what load_gemm_plans() took over, and returns the
// number of plans. The file is replaced as a whole: at any moment it is the old one or the new one. With
// nothing to write (nothing was tuned, no GPU, a build without CUDA) it is left as it is. Throws Error(io) if
// the file cannot be written, and Error(backend) if cuBLASLt cannot be opened.
std::size_t save_gemm_plans(const std::string& path);

// How many plans of a file will be used, and how many were left out, and why.
struct LoadedGemmPlans {
    std::size_t loaded = 0;         // will be used, without timing
    std::size_t other_device = 0;   // left out: made for a GPU that is not in this machine
    std::size_t other_version = 0;  // left out: made for another version of cuBLASLt
};

// Reads a file that save_gemm_plans() wrote. Each algorithm still has to pass the check of its sums before
// its first use; one that does not is forgotten. Nothing is taken over from a damaged file. Throws Error(io)
// if the file cannot be read or holds no JSON; Error(value) if it is no plan file, a field is out of range or
// the checksum differs; Error(backend) if cuBLASLt cannot be opened.
LoadedGemmPlans load_gemm_plans(const std::string& path);

}  // namespace mezzo::cuda

#pragma GCC visibility pop
