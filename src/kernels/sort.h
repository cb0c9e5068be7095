// Order along one dimension of a contiguous tensor. -0 equals 0, NaN is larger than everything, and equal
// elements keep their order.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

// x -> int64 of x's shape: the positions along dim in the order of the elements.
struct ArgSort {
    static constexpr const char* name = "argsort";
    std::int64_t dim = 0;
    bool descending = false;
};
// The first k of them; the result has size k along dim.
struct TopK {
    static constexpr const char* name = "topk";
    std::int64_t dim = 0, k = 0;
    bool largest = true;
};
// sorted [..., n] or [n], values [..., m] of the same dtype -> int64 of the shape of values: how many
// elements of the row are less than the value, with `right` less than or equal to it.
struct SearchSorted {
    static constexpr const char* name = "searchsorted";
    bool right = false;
};

}  // namespace mezzo::kernels
