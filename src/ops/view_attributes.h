// Attributes of the views, also for observers of ops.
#pragma once

#include <cstdint>

#include "mezzo/shape.h"

namespace mezzo {

struct Permute {
    static constexpr const char* name = "permute";
    Axes axes = {};  // of the input, in the order of the result
};
// Attributes of slice, select and slice_grad: the elements start, start + step, ... of a dimension of `size`
// elements.
struct SliceAt {
    static constexpr const char* name = "slice";
    int dim = 0;
    std::int64_t start = 0, step = 1, size = 0;
};

}  // namespace mezzo
