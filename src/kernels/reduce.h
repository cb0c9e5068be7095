// Reductions: contiguous x -> x reduced over `axes` (ascending, not negative). The result may be float32 for
// a 16-bit x.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

struct Sum {
    static constexpr const char* name = "sum";
    Axes axes = {};
};
// keepdim: the result's shape has a 1 for each axis. Only the decomposition reads it.
struct Mean {
    static constexpr const char* name = "mean";
    Axes axes = {};
    bool keepdim = false;
};
struct Max {
    static constexpr const char* name = "max";
    Axes axes = {};
};
struct Min {
    static constexpr const char* name = "min";
    Axes axes = {};
    bool keepdim = false;
};
// The root of the sum of squares.
struct Norm {
    static constexpr const char* name = "norm";
    Axes axes = {};
    bool keepdim = false;
};
// x -> int64: the index of the largest element along `dim`, the first of several; NaN counts as the largest.
struct ArgMax {
    static constexpr const char* name = "argmax";
    std::int64_t dim = 0;
};
// The same of the smallest element; NaN counts as the smallest.
struct ArgMin {
    static constexpr const char* name = "argmin";
    std::int64_t dim = 0;
};
// g, x, y; g and y have a 1 for each axis -> g where x == y, divided by the number of ties. Kernels follow
// the shapes and do not read the axes.
struct AmaxGrad {
    static constexpr const char* name = "amax_grad";
    Axes axes = {};
};
// x [rows, cols] -> [cols], the gradient of a bias.
struct ColumnSum {
    static constexpr const char* name = "column_sum";
};

}  // namespace mezzo::kernels
