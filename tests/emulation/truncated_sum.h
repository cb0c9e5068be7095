// Model of the sums of mma.sync on Tensor Cores, for the emulator and the PTX interpreter.
#pragma once

#include <algorithm>
#include <cmath>

namespace mezzo::emulation {

// `sum` and eight products, as Tensor Cores add: all are aligned to the largest, what lies below its 24th
// fractional bit is cut off, and the result is cut to float. By what others have measured on compute
// capability 8.0; NVIDIA documents no order.
inline float truncated_sum(float sum, const float* left, const float* right) {
    double terms[9] = {sum}, largest = std::abs(double(sum)), plain = sum;
    for (int k = 0; k < 8; ++k) {
        terms[k + 1] = double(left[k]) * right[k];  // exact: 11 bits each
        largest = std::max(largest, std::abs(terms[k + 1]));
        plain += terms[k + 1];
    }
    if (largest == 0 || !std::isfinite(plain)) return float(plain);
    const double unit = std::ldexp(1.0, std::ilogb(largest) - 24);
    double units = 0;
    for (const double term : terms) units += std::trunc(term / unit);
    const float result = float(units * unit);
    const bool away = std::abs(double(result)) > std::abs(units * unit) && std::isfinite(result);
    return away ? std::nextafter(result, 0.0f) : result;
}

}  // namespace mezzo::emulation
