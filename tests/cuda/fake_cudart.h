// A CUDA runtime that runs nothing and answers as a test plans: linked instead of libcudart under
// cuda/runtime/runtime.cpp.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <string>
#include <vector>

namespace mezzo::fake_cudart {

struct State {
    std::map<std::string, cudaError_t> answers;  // by the call's name; success for all others
    cudaError_t last_error = cudaSuccess;        // what cudaGetLastError() will return
    std::vector<int> capabilities = {80};        // compute capability, times ten, of each device
    int device = 0;                              // the current one
    std::map<cudaDeviceAttr, int> attributes;    // of every device; 1 for all others
};
State& state();

}  // namespace mezzo::fake_cudart
