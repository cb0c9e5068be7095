// Cubic convolution with a = -0.75 (Keys, "Cubic convolution interpolation for digital image processing",
// 1981).
#pragma once

#include "ops/common.h"

namespace mezzo {

// The weight of pixel k = 0 ... 3 of four around positions, which lie t behind pixel 1.
inline Tensor cubic_weight(const Tensor& t, int k) {
    constexpr double a = -0.75;
    const Tensor d = k < 2 ? t + double(1 - k) : double(k - 1) - t;
    if (k == 1 || k == 2) return ((a + 2) * d - (a + 3)) * d * d + 1.0;
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

}  // namespace mezzo
