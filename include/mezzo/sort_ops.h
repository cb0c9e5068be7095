// Sorting, the largest and middle elements, and look-ups in sorted tensors. Any dtype but where stated. -0
// equals 0, NaN is larger than everything, and equal elements keep their order.
//
//   const auto [values, indices] = topk(net(x), 5);
//   const Tensor order = argsort(x, -1, {.descending = true});
//   const Unique classes = unique(labels, {.counts = true});
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

struct Sorted {
    Tensor values;   // differentiable
    Tensor indices;  // int64: indices in x
};
[[nodiscard]] Sorted sort(const Tensor& x, std::int64_t dim = -1, SortOptions options = {});
[[nodiscard]] Tensor argsort(const Tensor& x, std::int64_t dim = -1, SortOptions options = {});
// The k largest (or smallest) elements along dim, best first. Error(value) unless k is in [0, size].
[[nodiscard]] Sorted topk(const Tensor& x, std::int64_t k, std::int64_t dim = -1, TopkOptions options = {});
// The k-th smallest element along dim, counted from 1. Error(value) unless k is in [1, size].
[[nodiscard]] Sorted kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim = -1,
                              KeepdimOptions options = {});

// The lower of the two middle elements along dim and its index; NaN if an element is NaN.
[[nodiscard]] Sorted median(const Tensor& x, std::int64_t dim, KeepdimOptions options = {});
// The median of all elements, 0-dim; elements that are equal to it share the gradient. Error(shape) for none.
[[nodiscard]] Tensor median(const Tensor& x);
// The most frequent element along dim, the smallest if there are several, and the last index of it. Each NaN
// counts alone.
[[nodiscard]] Sorted mode(const Tensor& x, std::int64_t dim = -1, KeepdimOptions options = {});
// The largest (smallest) of all elements up to each one along dim, and its index, the last if there are
// several. NaN stays from where it occurs. Take log2(size) passes.
[[nodiscard]] Sorted cummax(const Tensor& x, std::int64_t dim);
[[nodiscard]] Sorted cummin(const Tensor& x, std::int64_t dim);

struct SearchsortedOptions {
    bool right = false;  // after equal elements instead of before them
};
// Insertion index of each value in its row of `sorted` (ascending along the last dimension), int64: before
// equal elements, or after them with `right`. sorted [..., n] and values [..., m] have equal leading
// dimensions, or sorted is [n]. Their dtypes are promoted.
[[nodiscard]] Tensor searchsorted(const Tensor& sorted, const Tensor& values,
                                  SearchsortedOptions options = {});
// Whether each of `elements` occurs in `test` (any shape); boolean, of the shape of `elements`. NaN never
// does.
[[nodiscard]] Tensor isin(const Tensor& elements, const Tensor& test);

struct UniqueOptions {
    bool inverse = false, counts = false;  // whether these results are wanted
};
struct Unique {
    Tensor values;   // [n], ascending
    Tensor inverse;  // int64, of the shape of x: where each element is in values
    Tensor counts;   // int64 [n]: how often each value is in x
};
// The different elements of x; every NaN counts as different. Waits for the device, because the result's size
// depends on values.
[[nodiscard]] Unique unique(const Tensor& x, UniqueOptions options = {});
// Counts of 0, 1, 2, ... in the integers x [n], int64; with weights [n] the sums of the weights instead, in
// their dtype (float64 unless they are floating). The result has max(largest x + 1, minlength) elements.
// Waits for the device. Error(value) for negative elements. Not differentiable.
[[nodiscard]] Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t minlength = 0);

}  // namespace mezzo

#pragma GCC visibility pop
