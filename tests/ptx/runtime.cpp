// Devices, errors and memory, and what the environment says about the device.
#include "tests/ptx/runtime.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/ptx/device_memory.h"
#include "tests/ptx/exact_allocations.h"
#include "tests/ptx/stand_in.h"

namespace mezzo::ptx {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t device_error = cudaSuccess;

// A whole number of the environment. A typing error must not quietly switch off what a test was to show.
unsigned number_of(const char* name, unsigned otherwise) {
    const char* const text = std::getenv(name);
    if (text == nullptr) return otherwise;
    char* end = nullptr;
    const unsigned long value = std::strtoul(text, &end, 10);
    if (end != text && *end == 0) return unsigned(value);
    std::fprintf(stderr, "%s: '%s' is no number\n", name, text);
    std::abort();
}

// Reports a call of cuBLASLt that would be a fault on a GPU.
void report_misuse(const std::string& what) {
    static Kernel& library = *new Kernel;
    library.name = "cublasLtMatmul";
    report(library, nullptr, "misuse", what);
    throw Fault(what);
}

// mezzo opens the stand-in for cuBLASLt where it would open NVIDIA's library.
void offer_stand_in() {
    void* const library = dlopen(MEZZO_CUBLASLT_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::abort();
    }
    static const StandInHooks hooks{[](void* stream, std::function<void()> work) {
                                        enqueue(static_cast<cudaStream_t>(stream), std::move(work));
                                    },
                                    &mark_written, [] { return int(options.capability); }, &report_misuse};
    reinterpret_cast<void (*)(const StandInHooks*)>(dlsym(library, "mezzo_stand_in_hooks"))(&hooks);
    setenv("MEZZO_CUBLASLT", MEZZO_CUBLASLT_STAND_IN, 1);
}

// The variables without PTX in their names are those of mezzo-tests-emulated. The other libraries of NVIDIA
// know nothing of this device, and its results must not lie in the user's cache.
[[maybe_unused]] const bool environment_read = [] {
    setenv("MEZZO_CACHE", "off", 0);
    setenv("MEZZO_NCCL", "off", 0);
    setenv("MEZZO_CUPTI", "off", 0);
    options.schedule = number_of("MEZZO_SCHEDULE", options.schedule);
    options.multiprocessors = number_of("MEZZO_MULTIPROCESSORS", options.multiprocessors);
    options.truncated_sums = number_of("MEZZO_TRUNCATED_SUMS", 0) != 0;
    options.capability = number_of("MEZZO_PTX_CAPABILITY", MEZZO_NEWEST_PTX);
    options.inexact = number_of("MEZZO_PTX_INEXACT", options.inexact);
    options.drop_barrier = number_of("MEZZO_PTX_DROP_BARRIER", options.drop_barrier);
    if (number_of("MEZZO_PTX_EXACT_ALLOCATIONS", 0) != 0) new ExactAllocations;  // until the program ends
    offer_stand_in();
    return true;
}();

std::map<void*, std::unique_ptr<char[]>>& pinned_memory() {
    static auto& all = *new std::map<void*, std::unique_ptr<char[]>>;
    return all;
}

}  // namespace

std::recursive_mutex& runtime_mutex() {
    static auto& mutex = *new std::recursive_mutex;
    return mutex;
}

cudaError_t returned(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}
void set_device_error(cudaError_t error) { device_error = error; }
// A GPU's process could not go on after it; here the next case does.
cudaError_t take_device_error() { return std::exchange(device_error, cudaSuccess); }

// By compute capability: CUDA C++ Programming Guide, "Technical Specifications".
Limits limits() {
    switch (options.capability) {
        case 75:
            return {64 << 10, 1024, 16};
        case 80:
            return {163 << 10, 2048, 32};
        case 86:
            return {99 << 10, 1536, 16};
        case 89:
            return {99 << 10, 1536, 24};
        case 120:
            return {99 << 10, 1536, 32};
        default:
            return {227 << 10, 2048, 32};
    }
}

}  // namespace mezzo::ptx

using namespace mezzo::ptx;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return returned(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (device != 0) return returned(cudaErrorInvalidDevice);
    *p = {};
    std::snprintf(p->name, sizeof p->name, "PTX on the CPU, as compute capability %u.%u",
                  options.capability / 10, options.capability % 10);
    p->major = int(options.capability / 10);
    p->minor = int(options.capability % 10);
    p->multiProcessorCount = int(options.multiprocessors);
    p->totalGlobalMem = options.device_memory;
    p->l2CacheSize = 16 << 10;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = limits().shared_memory;
    p->maxThreadsPerMultiProcessor = limits().threads;
    p->maxBlocksPerMultiProcessor = limits().blocks;
    p->maxThreadsPerBlock = 1024;
    p->warpSize = warp_size;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount:
            *value = int(options.multiprocessors);
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = int(limits().shared_memory);
            break;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *value = limits().threads;
            break;
        case cudaDevAttrMaxBlocksPerMultiprocessor:
            *value = limits().blocks;
            break;
        case cudaDevAttrComputeCapabilityMajor:
            *value = int(options.capability / 10);
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *value = int(options.capability % 10);
            break;
        default:
            return returned(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaErrorLaunchFailure:
            return "cudaErrorLaunchFailure";
        case cudaErrorInvalidPtx:
            return "cudaErrorInvalidPtx";
        case cudaErrorNoKernelImageForDevice:
            return "cudaErrorNoKernelImageForDevice";
        case cudaErrorInvalidConfiguration:
            return "cudaErrorInvalidConfiguration";
        case cudaErrorInvalidValue:
            return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation:
            return "cudaErrorMemoryAllocation";
        case cudaErrorStreamCaptureUnsupported:
            return "cudaErrorStreamCaptureUnsupported";
        default:
            return "cudaError";
    }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    *memory = allocate(bytes);
    return returned(*memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
    return returned(memory == nullptr || release(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
    const std::lock_guard lock(runtime_mutex());
    std::unique_ptr<char[]> made(new char[bytes]);
    std::memset(made.get(), 0xFF, bytes);
    *memory = made.get();
    pinned_memory()[*memory] = std::move(made);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
    const std::lock_guard lock(runtime_mutex());
    return returned(pinned_memory().erase(memory) == 1 ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if ((to_device && !is_device_memory(to, bytes)) || (from_device && !is_device_memory(from, bytes)))
        return returned(cudaErrorInvalidValue);
    enqueue(stream, [=] {
        std::memmove(to, from, bytes);
        if (to_device && from_device)
            copy_marks(to, from, bytes);
        else if (to_device)
            mark_written(to, bytes);
    });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
    if (!is_device_memory(to, bytes)) return returned(cudaErrorInvalidValue);
    enqueue(stream, [=] {
        std::memset(to, value, bytes);
        mark_written(to, bytes);
    });
    return cudaSuccess;
}

}  // extern "C"
