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

// Calls f(...) on the device with this index.
template <auto* f, class... A> auto on_device(int index, A... arguments) {
    const OnDevice scope(index);
    return f(arguments...);
}

void destroy_graph(int, void* graph) { cuda::destroy_graph(graph); }

const Backend memory{.device_count = cuda::device_count,
                     .hardware_name = hardware_name,
                     .allocate = on_device<cuda::device_malloc>,
                     .release = on_device<cuda::device_free>,
                     .copy_in = on_device<cuda::copy_to_device>,
                     .copy_out = on_device<cuda::copy_to_host>,
                     .copy = on_device<cuda::copy_on_device>,
                     .synchronize = on_device<cuda::synchronize>,
                     .begin_capture = on_device<cuda::begin_capture>,
                     .end_capture = on_device<cuda::end_capture>,
                     .launch_graph = on_device<cuda::launch_graph>,
                     .destroy_graph = destroy_graph,
                     .make_staging = cuda::make_staging,
                     .device_absence = cuda::device_absence,
                     .gemm_plans = &cuda::plan_store,
                     .collectives = &cuda::nccl::library,
                     .ordinal_of = cuda::ordinal_of,
                     .index_of = cuda::index_of};

}  // namespace

extern const StepKernels cuda_step_kernels;  // cuda/optim/step.cu
extern const SelfChecks cuda_self_checks;    // cuda/self_check/self_checks.cpp
extern const BackendParts cuda_parts;
using namespace cuda_kernels;
constinit const BackendParts cuda_parts{
    &memory,
    lists_of<activation_grad_list, attention_list, batch_norm_list, batch_norm_grad_list, group_norm_list,
             binary_list, compare_list, conv_list, copy_list, cross_entropy_list, extremes_list, fp8_list,
             gate_list, index_list, interpolate_list, loss_bias_grad_list, loss_list, matmul_list,
             norm_grad_list, norm_list, order_list, pad_list, pool_list, random_list, range_list,
             recurrent_list, reduce_list, softmax_list, unary_list>,
    &cuda_step_kernels, &cuda_self_checks, &cuda::cupti::library};

}  // namespace mezzo
