// The list of CUDA's self-checks, and the identity of device and libraries for which their cached results
// hold.
#include "cuda/self_check/self_checks.h"

#include <array>

#include "cuda/gemm/lt.h"
#include "cuda/runtime/capture_owner.h"
#include "cuda/runtime/on_device.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo {
namespace {

constexpr auto all = [] {
    using enum FastPathId;
    std::array<SelfCheck, 31> list{};
    SelfCheck* next = list.data();
    for (const FastPathId path : {flash_attention, flash_attention_grad})
        for (const Dtype dtype : {float16, bfloat16})
            for (const int dim : {32, 64, 128}) *next++ = {path, dtype, dim};
    for (const FastPathId path :
         {implicit_convolution, implicit_convolution_input_grad, implicit_convolution_weight_grad})
        for (const Dtype dtype : {float16, bfloat16}) *next++ = {path, dtype};
    for (const FastPathId path : {bias_gradients, layers, relu_masks})
        for (const Dtype dtype : {float16, bfloat16, float32, float64}) *next++ = {path, dtype};
    *next = {prefetch};
    return list;
}();

using Run = void (*)(const SelfCheck&);
// In the order of FastPathId.
constexpr Run runs[fast_path_count] = {cuda::check_attention,
                                       cuda::check_attention_grad,
                                       cuda::check_convolution,
                                       cuda::check_convolution_input_grad,
                                       cuda::check_convolution_weight_grad,
                                       cuda::check_bias_gradients,
                                       cuda::check_layers,
                                       cuda::check_relu_masks,
                                       cuda::check_prefetch};

std::string library_version() {
    try {
        return std::to_string(cuda::lt::version());
    } catch (const Error&) {  // there is no cuBLASLt
        return "none";
    }
}

std::string identity(int device) {
    const cuda::DeviceInfo info = cuda::device_info(device);
    return std::string(info.name) + ", compute capability " + std::to_string(info.major) + "." +
           std::to_string(info.minor) + ", driver " + std::to_string(cuda::driver_version()) + ", runtime " +
           std::to_string(cuda::runtime_version()) + ", cuBLASLt " + library_version();
}

bool ready(int device) {
    const cuda::OnDevice scope(device);
    return !cuda::CaptureOwner::any(device) && !cuda::stream_is_capturing();
}

void run(const SelfCheck& self_check, int device) {
    const cuda::OnDevice scope(device);
    runs[int(self_check.path)](self_check);
}

}  // namespace

extern const SelfChecks cuda_self_checks;
constinit const SelfChecks cuda_self_checks{all, identity, ready, run};

}  // namespace mezzo
