// Options of functions that are also methods of Tensor: x.sum(1, {.keepdim = true}).
#pragma once

#include "mezzo/dtype.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Options of reductions over axes.
struct ReduceOptions {
    bool keepdim = false;          // keep the reduced dimensions with size 1
    Dtype dtype = Dtype::float32;  // of the result, read only when explicit_dtype; floating for a floating x
    bool explicit_dtype = false;
};
struct KeepdimOptions {
    bool keepdim = false;
};
struct VarOptions {
    bool keepdim = false;
    // subtracted from the number of elements: 1 is Bessel's correction, 0 the biased variance
    double correction = 1;
};
struct SortOptions {
    bool descending = false;
};
struct TopkOptions {
    bool largest = true;  // false: the smallest
};

}  // namespace mezzo

#pragma GCC visibility pop
