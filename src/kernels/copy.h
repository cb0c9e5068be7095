// Kernels that move and make elements without arithmetic.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

// x, any strides -> x in the result's dtype, contiguous. contiguous() and clone() use it, too.
struct Cast {
    static constexpr const char* name = "cast";
    static constexpr bool any_dtype = true;
};
// x of any dtype, broadcast -> an existing tensor with any strides, which may share x's memory.
struct CopyInto {
    static constexpr const char* name = "copy_into";
    static constexpr bool any_dtype = true;
};
// No input -> every element of the result, which may have any strides, is `value`.
struct Fill {
    static constexpr const char* name = "fill";
    static constexpr bool any_dtype = true;
    Scalar value = 0;
};
// Any number of inputs of the result's dtype with any strides, whose shapes differ along `dim` only -> all of
// them, one after the other along `dim`.
struct Cat {
    static constexpr const char* name = "cat";
    static constexpr bool any_dtype = true;
    std::int64_t dim = 0;
};
// No input -> [n], element i is i.
struct Arange {
    static constexpr const char* name = "arange";
};

}  // namespace mezzo::kernels
