// Settings of kernels. They exist also in builds without those kernels.
#include <atomic>
#include <mutex>

#include "core/enumerators.h"
#include "mezzo/cuda.h"
#include "mezzo/device.h"
#include "mezzo/error.h"

namespace mezzo {
namespace {

std::atomic<FastPath> flash_attention_use, implicit_convolution_use;
std::mutex mutex;
cuda::GemmOptions current;

}  // namespace

const char* name(FastPath path) {
    constexpr const char* names[] = {"automatic", "on", "off"};
    return path.choice() <= FastPath::off ? names[path.choice()] : "unknown";
}

void set_flash_attention(FastPath use) {
    check_enumerator("set_flash_attention", "use", use.choice(), FastPath::off);
    flash_attention_use = use;
}
FastPath flash_attention() { return flash_attention_use; }

namespace cuda {

void set_implicit_convolution(FastPath use) {
    check_enumerator("set_implicit_convolution", "use", use.choice(), FastPath::off);
    implicit_convolution_use = use;
}
FastPath implicit_convolution() { return implicit_convolution_use; }

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
