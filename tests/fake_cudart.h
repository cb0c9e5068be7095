// A CUDA runtime that runs nothing and answers what a test has planned: linked in place of libcudart under
// cuda/runtime.cpp.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <string>

namespace mezzo::fake_cudart {

struct State {
    std::map<std::string, cudaError_t> answers;  // by the call's name; success for all others
    cudaError_t last_error = cudaSuccess;        // what cudaGetLastError() will return
};
State& state();

}  // namespace mezzo::fake_cudart
