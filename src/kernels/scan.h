// Running sums and products along one dimension of contiguous tensors: element i of the result is made of
// elements 0 to i, or with `reverse` of i to the last. Sums of floats are accumulated in double.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

// x -> sums, in any dtype that holds them.
struct CumSum {
    static constexpr const char* name = "cumsum";
    std::int64_t dim = 0;
    bool reverse = false;
};
// x -> products.
struct CumProd {
    static constexpr const char* name = "cumprod";
    std::int64_t dim = 0;
    bool reverse = false;
};
// a, b -> h with h[i] = a[i] h[i - 1] + b[i] and 0 before the first: the gradient of cumprod, and its own.
struct LinearScan {
    static constexpr const char* name = "linear_scan";
    std::int64_t dim = 0;
    bool reverse = false;
};

}  // namespace mezzo::kernels
