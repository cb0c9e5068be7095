// Padding with a constant.
#pragma once

#include "kernels/kernel.h"

namespace mezzo::kernels {

// x of any dtype -> the same elements from `before` on in a result of `sizes`, `value` in all others.
struct Pad {
    static constexpr const char* name = "pad";
    Shape before = {}, sizes = {};
    double value = 0;
};

}  // namespace mezzo::kernels
