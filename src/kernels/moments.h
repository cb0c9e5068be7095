// Products and second moments: contiguous x -> x reduced over `axes` (ascending, not negative). The result
// may be float32 for a 16-bit x. keepdim: the result's shape has a 1 for each axis; only decompositions read
// it.
#pragma once

#include "kernels/kernel.h"

namespace mezzo::kernels {

struct Prod {
    static constexpr const char* name = "prod";
    Axes axes = {};
};
// The sum of squared distances from the mean, divided by max(n - correction, 0); and its root.
struct Var {
    static constexpr const char* name = "var";
    Axes axes = {};
    double correction = 1;
    bool keepdim = false;
};
struct Std {
    static constexpr const char* name = "std";
    Axes axes = {};
    double correction = 1;
    bool keepdim = false;
};
// a [n], b [n] -> 0-dim: the sum of their products.
struct Dot {
    static constexpr const char* name = "dot";
};

}  // namespace mezzo::kernels
