// Sets options of CUDA's matrix products for a scope.
#pragma once

#include "mezzo/cuda.h"

namespace mezzo::test {

struct [[nodiscard]] GemmOptionsScope {
    explicit GemmOptionsScope(const cuda::GemmOptions& options) { cuda::set_gemm_options(options); }
    ~GemmOptionsScope() { cuda::set_gemm_options({}); }
    GemmOptionsScope(const GemmOptionsScope&) = delete;
    GemmOptionsScope& operator=(const GemmOptionsScope&) = delete;
};

}  // namespace mezzo::test
