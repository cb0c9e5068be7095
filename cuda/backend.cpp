// The CUDA backend: memory and copies on each device's own stream, and the lists of its kernels.
#include <mutex>
#include <set>
#include <string>

#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/nccl/nccl.h"
#include "cuda/runtime/cupti.h"
#include "cuda/runtime/devices.h"
#include "cuda/runtime/on_device.h"
#include "cuda/runtime/runtime.h"
#include "cuda/runtime/staging.h"
#include "kernels/registry.h"

namespace mezzo {
namespace {

using cuda::OnDevice;

// The names are never freed, because pointers to them are given out.
const char* hardware_name(int index) {
    static std::mutex mutex;
    static std::set<std::string>& names = *new std::set<std::string>;
    const std::string now = cuda::device_info(index).name;
    const std::lock_guard lock(mutex);
    return names.insert(now).first->c_str();
}

void* allocate(int index, std::size_t bytes) {
    const OnDevice scope(index);
    return cuda::device_malloc(bytes);
}

void release(int index, void* memory) {
    const OnDevice scope(index);
    cuda::device_free(memory);
}

void copy_in(int index, void* to, const void* from, std::size_t bytes) {
    const OnDevice scope(index);
    cuda::copy_to_device(to, from, bytes);
}

void copy_out(int index, void* to, const void* from, std::size_t bytes) {
    const OnDevice scope(index);
    cuda::copy_to_host(to, from, bytes);
}

void copy(int index, void* to, const void* from, std::size_t bytes) {
    const OnDevice scope(index);
    cuda::copy_on_device(to, from, bytes);
}

void synchronize(int index) {
    const OnDevice scope(index);
    cuda::synchronize();
}

void begin_capture(int index) {
    const OnDevice scope(index);
    cuda::begin_capture();
}

void* end_capture(int index) {
    const OnDevice scope(index);
    return cuda::end_capture();
}

void launch_graph(int index, void* graph) {
    const OnDevice scope(index);
    cuda::launch_graph(graph);
}

void destroy_graph(int, void* graph) { cuda::destroy_graph(graph); }

const Backend memory{.device_count = cuda::device_count,
                     .hardware_name = hardware_name,
                     .allocate = allocate,
                     .release = release,
                     .copy_in = copy_in,
                     .copy_out = copy_out,
                     .copy = copy,
                     .synchronize = synchronize,
                     .begin_capture = begin_capture,
                     .end_capture = end_capture,
                     .launch_graph = launch_graph,
                     .destroy_graph = destroy_graph,
                     .make_staging = cuda::make_staging,
                     .device_absence = cuda::device_absence,
                     .gemm_plans = &cuda::plan_store,
                     .collectives = &cuda::nccl::library,
                     .ordinal_of = cuda::ordinal_of,
                     .index_of = cuda::index_of};

const KernelList* const lists[] = {&cuda_kernels::activation_grad_list,
                                   &cuda_kernels::attention_list,
                                   &cuda_kernels::batch_norm_list,
                                   &cuda_kernels::batch_norm_grad_list,
                                   &cuda_kernels::group_norm_list,
                                   &cuda_kernels::binary_list,
                                   &cuda_kernels::compare_list,
                                   &cuda_kernels::conv_list,
                                   &cuda_kernels::copy_list,
                                   &cuda_kernels::cross_entropy_list,
                                   &cuda_kernels::extremes_list,
                                   &cuda_kernels::fp8_list,
                                   &cuda_kernels::gate_list,
                                   &cuda_kernels::index_list,
                                   &cuda_kernels::interpolate_list,
                                   &cuda_kernels::loss_bias_grad_list,
                                   &cuda_kernels::loss_list,
                                   &cuda_kernels::matmul_list,
                                   &cuda_kernels::norm_grad_list,
                                   &cuda_kernels::norm_list,
                                   &cuda_kernels::order_list,
                                   &cuda_kernels::pad_list,
                                   &cuda_kernels::pool_list,
                                   &cuda_kernels::random_list,
                                   &cuda_kernels::range_list,
                                   &cuda_kernels::recurrent_list,
                                   &cuda_kernels::reduce_list,
                                   &cuda_kernels::softmax_list,
                                   &cuda_kernels::unary_list};

}  // namespace

extern const StepKernels cuda_step_kernels;  // cuda/optim/step.cu
extern const SelfChecks cuda_self_checks;    // cuda/self_check/self_checks.cpp
extern const BackendParts cuda_parts;
constinit const BackendParts cuda_parts{&memory, lists, &cuda_step_kernels, &cuda_self_checks,
                                        &cuda::cupti::library};

}  // namespace mezzo
