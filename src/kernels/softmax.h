// Softmax along one dimension of a contiguous tensor. Results may be float32 for 16-bit inputs.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

// x -> e^x / (sum of e^x along dim).
struct Softmax {
    static constexpr const char* name = "softmax";
    std::int64_t dim = 0;
};
struct LogSoftmax {
    static constexpr const char* name = "log_softmax";
    std::int64_t dim = 0;
};
// g, y = softmax(x) -> gradient of x in any floating dtype.
struct SoftmaxGrad {
    static constexpr const char* name = "softmax_grad";
    std::int64_t dim = 0;
};
// g, y = log_softmax(x) -> gradient of x in any floating dtype.
struct LogSoftmaxGrad {
    static constexpr const char* name = "log_softmax_grad";
    std::int64_t dim = 0;
};

}  // namespace mezzo::kernels
