// Options of functions that are also methods of Tensor: x.sum(1, {.keepdim = true}).
#pragma once

#include "mezzo/dtype.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Options of reductions over axes.
struct ReduceOptions {
    bool keepdim = false;          // leave dimensions of size 1 where they were reduced
    Dtype dtype = Dtype::float32;  // of the result, read only when explicit_dtype; floating for a floating x
    bool explicit_dtype = false;
};
struct KeepdimOptions {
    bool keepdim = false;
};
struct VarOptions {
    bool keepdim = false;
    double correction = 1;  // what is taken from the number of elements: 1 is Bessel's, 0 the biased variance
};
struct SortOptions {
    bool descending = false;
};
struct TopkOptions {
    bool largest = true;  // false: the smallest
};

}  // namespace mezzo

#pragma GCC visibility pop
