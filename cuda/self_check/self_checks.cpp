// The list of CUDA's self-checks, and the identity of device and libraries for which their cached results
// hold.
#include "cuda/proof/proofs.h"

#include "cuda/gemm/lt.h"
#include "cuda/runtime/capture_owner.h"
#include "cuda/runtime/on_device.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo {
namespace {

constexpr Proof all[] = {{FastPathId::flash_attention, float16, 32},
                         {FastPathId::flash_attention, float16, 64},
                         {FastPathId::flash_attention, float16, 128},
                         {FastPathId::flash_attention, bfloat16, 32},
                         {FastPathId::flash_attention, bfloat16, 64},
                         {FastPathId::flash_attention, bfloat16, 128},
                         {FastPathId::flash_attention_grad, float16, 32},
                         {FastPathId::flash_attention_grad, float16, 64},
                         {FastPathId::flash_attention_grad, float16, 128},
                         {FastPathId::flash_attention_grad, bfloat16, 32},
                         {FastPathId::flash_attention_grad, bfloat16, 64},
                         {FastPathId::flash_attention_grad, bfloat16, 128},
                         {FastPathId::implicit_convolution, float16},
                         {FastPathId::implicit_convolution, bfloat16},
                         {FastPathId::implicit_convolution_input_grad, float16},
                         {FastPathId::implicit_convolution_input_grad, bfloat16},
                         {FastPathId::implicit_convolution_weight_grad, float16},
                         {FastPathId::implicit_convolution_weight_grad, bfloat16},
                         {FastPathId::bias_gradients, float16},
                         {FastPathId::bias_gradients, bfloat16},
                         {FastPathId::bias_gradients, float32},
                         {FastPathId::bias_gradients, float64},
                         {FastPathId::layers, float16},
                         {FastPathId::layers, bfloat16},
                         {FastPathId::layers, float32},
                         {FastPathId::layers, float64},
                         {FastPathId::relu_masks, float16},
                         {FastPathId::relu_masks, bfloat16},
                         {FastPathId::relu_masks, float32},
                         {FastPathId::relu_masks, float64},
                         {FastPathId::prefetch}};

using Run = void (*)(const Proof&);
// In the order of FastPathId.
constexpr Run runs[fast_path_count] = {cuda::prove_attention,
                                       cuda::prove_attention_grad,
                                       cuda::prove_convolution,
                                       cuda::prove_convolution_input_grad,
                                       cuda::prove_convolution_weight_grad,
                                       cuda::prove_bias_gradients,
                                       cuda::prove_layers,
                                       cuda::prove_relu_masks,
                                       cuda::prove_prefetch};

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

void run(const Proof& proof, int device) {
    const cuda::OnDevice scope(device);
    runs[int(proof.path)](proof);
}

}  // namespace

extern const ProofList cuda_proofs;
constinit const ProofList cuda_proofs{all, identity, ready, run};

}  // namespace mezzo
