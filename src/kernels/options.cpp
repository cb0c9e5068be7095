// Settings of kernels. They exist in builds without those kernels, too.
#include <atomic>
#include <mutex>

#include "mezzo/cuda.h"
#include "mezzo/device.h"
#include "mezzo/error.h"

namespace mezzo {
namespace {

std::atomic<bool> flash_attention_on{false}, implicit_convolution_on{false};
std::mutex mutex;
cuda::GemmOptions current;

}  // namespace

void set_flash_attention(bool on) { flash_attention_on = on; }
bool flash_attention() { return flash_attention_on; }

namespace cuda {

void set_implicit_convolution(bool on) { implicit_convolution_on = on; }
bool implicit_convolution() { return implicit_convolution_on; }

void set_gemm_options(const GemmOptions& options) {
    check(options.candidates >= 1 && options.candidates <= 64, ErrorKind::value,
          "set_gemm_options: candidates = ", options.candidates, "; 1 to 64 can be tried");
    const std::lock_guard lock(mutex);
    current = options;
}

GemmOptions gemm_options() {
    const std::lock_guard lock(mutex);
    return current;
}

}  // namespace cuda
}  // namespace mezzo
