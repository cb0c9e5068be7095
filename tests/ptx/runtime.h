// Entry points of the CUDA runtime that mezzo and nvcc's host code call, over the PTX machine. They are
// linked in front of libcudart_static.a, of which nothing is taken. Streams do their work at once; a capture
// keeps it in order.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/ptx/machine.h"

namespace mezzo::ptx {

// The fat binary of one .cu file. Its PTX is read when one of its kernels is first launched.
struct FatBinary {
    const void* data;
    std::unique_ptr<Module> module;
    bool read = false;
    Module* get();  // nullptr if it has no PTX for the device
};
struct Function {
    FatBinary* binary;
    std::string name;
    std::size_t dynamic_limit = 48 << 10;  // cudaFuncSetAttribute raises it
    const Kernel& kernel() const { return binary->get()->kernel(name); }
};
// Null if nvcc's host code has registered none.
Function* find_function(const void* host);
// Names of all registered kernels.
std::vector<std::string> registered_kernels();
const std::vector<FatBinary*>& fat_binaries();

// Guards everything here. Recursive: a captured graph's work may launch.
std::recursive_mutex& runtime_mutex();

// Keeps the error for cudaGetLastError().
cudaError_t returned(cudaError_t error);
// The error of a kernel, which the next wait returns.
void set_device_error(cudaError_t error);
cudaError_t take_device_error();

struct Graph {
    std::vector<std::function<void()>> work;
};
struct Stream {
    Graph* captured = nullptr;
};
// Runs the work, or adds it to the stream's capture.
void enqueue(cudaStream_t stream, std::function<void()> work);

struct Limits {
    std::size_t shared_memory;  // bytes of a block, after cudaFuncSetAttribute
    int threads, blocks;        // of a multiprocessor
};
Limits limits();

}  // namespace mezzo::ptx
