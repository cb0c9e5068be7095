// Launches, with the limits that a device has.
#include <cstring>

#include <fmt/format.h>

#include "tests/ptx/runtime.h"

namespace mezzo::ptx {
namespace {

struct CallConfiguration {
    dim3 grid, block;
    std::size_t shared;
    void* stream;
};
thread_local std::vector<CallConfiguration> configurations;

struct Launch {
    dim3 grid, block;
    std::size_t shared;
};

// A reason to refuse it, or none.
std::string refusal(const Function& function, const Launch& launch) {
    const Kernel& kernel = function.kernel();
    const dim3 &grid = launch.grid, &block = launch.block;
    const std::uint64_t threads = std::uint64_t(block.x) * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64) return fmt::format("{} threads in a block", threads);
    if (kernel.max_threads != 0 && threads > kernel.max_threads)
        return fmt::format("{} threads, .maxntid is {}", threads, kernel.max_threads);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535)
        return fmt::format("a grid of ({},{},{})", grid.x, grid.y, grid.z);
    constexpr std::size_t usual = 48 << 10;
    const std::size_t all = kernel.declared_shared + launch.shared;
    if (kernel.declared_shared > usual || launch.shared > function.dynamic_limit ||
        all > std::max(usual, function.dynamic_limit + kernel.declared_shared))
        return fmt::format("{} + {} bytes of shared memory, cudaFuncSetAttribute has allowed {}",
                           kernel.declared_shared, launch.shared, function.dynamic_limit);
    if (function.dynamic_limit == usual && all > usual)
        return fmt::format("{} + {} bytes of shared memory without cudaFuncSetAttribute",
                           kernel.declared_shared, launch.shared);
    if (all > limits().shared_memory)
        return fmt::format("{} bytes of shared memory, the device has {}", all, limits().shared_memory);
    return "";
}

std::vector<char> parameters_of(const Kernel& kernel, void** arguments) {
    std::vector<char> parameters(kernel.parameter_bytes);
    for (std::size_t k = 0; k < kernel.parameters.size(); ++k)
        std::memcpy(parameters.data() + kernel.parameters[k].offset, arguments[k], kernel.parameters[k].size);
    return parameters;
}

cudaError_t launch_kernel(const Function& function, const Launch& launch, void** arguments,
                          cudaStream_t stream) {
    const std::lock_guard lock(runtime_mutex());
    try {
        if (function.binary->get() == nullptr) return returned(cudaErrorNoKernelImageForDevice);
        const Kernel& kernel = function.kernel();
        if (const std::string reason = refusal(function, launch); !reason.empty()) {
            report(kernel, nullptr, "launch refused", reason);
            return returned(cudaErrorInvalidConfiguration);
        }
        enqueue(stream, [=, &kernel, parameters = parameters_of(kernel, arguments)] {
            try {
                run(kernel, {launch.grid.x, launch.grid.y, launch.grid.z},
                    {launch.block.x, launch.block.y, launch.block.z}, launch.shared, parameters);
            } catch (const Fault&) {  // it has been reported
                set_device_error(cudaErrorLaunchFailure);
            }
        });
    } catch (const Fault& text_is_not_understood) {
        Kernel nameless;
        nameless.name = function.name;
        report(nameless, nullptr, "not understood", text_is_not_understood.what());
        return returned(cudaErrorInvalidPtx);
    }
    return cudaSuccess;
}

}  // namespace
}  // namespace mezzo::ptx

using namespace mezzo::ptx;

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
    const CallConfiguration call = configurations.back();
    configurations.pop_back();
    *grid = call.grid;
    *block = call.block;
    *shared = call.shared;
    *static_cast<void**>(stream) = call.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    *kernel = reinterpret_cast<cudaKernel_t>(find_function(host));
    return returned(*kernel != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
    return launch_kernel(*reinterpret_cast<const Function*>(kernel), {grid, block, shared}, arguments,
                         stream);
}
// Older toolkits' host code calls this instead.
cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
    const Function* const function = find_function(host);
    if (function == nullptr) return returned(cudaErrorInvalidDeviceFunction);
    return launch_kernel(*function, {grid, block, shared}, arguments, stream);
}
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
    const std::lock_guard lock(runtime_mutex());
    Function* const function = find_function(host);
    if (function == nullptr) return returned(cudaErrorInvalidDeviceFunction);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        std::size_t(value) + function->kernel().declared_shared > limits().shared_memory)
        return returned(cudaErrorInvalidValue);
    function->dynamic_limit = std::size_t(value);
    return cudaSuccess;
}

}  // extern "C"
