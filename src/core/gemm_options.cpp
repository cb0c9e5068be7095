#include "mezzo/cuda.h"

#include <mutex>

#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

std::mutex mutex;
GemmOptions current;

}  // namespace

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

}  // namespace mezzo::cuda
