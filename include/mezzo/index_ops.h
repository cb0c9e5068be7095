// Writes by index, and further look-ups. All return a new tensor and leave x as it is. They take any dtype,
// and are differentiable by x and by what is written. index_select() and gather() are in ops.h.
//
//   y = index_put(x, {ids, 0}, 1);              // x[ids, 0] = 1
//   y = scatter(zeros({4, 10}), 1, labels, 1);  // ones at labels [4, 1]
//   y = scatter_reduce(x, 0, ids, y, ScatterReduction::amax);
//
// Indices are int64 or int32. One out of range throws Error(value) on the CPU; on CUDA, where a check would
// wait for the device, look-ups give NaN (0 for integers), and nothing is written for it. Of several values
// for one element the last counts, and only that one has a gradient. Values have the dtype of x.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// x[entries] for a list that is made at run time.
[[nodiscard]] Tensor index(const Tensor& x, const std::vector<Index>& entries);

struct IndexPutOptions {
    bool accumulate = false;  // adds to the elements; several values for one element are added up
};
// x with x[entries] replaced by values, which broadcast to it: Python's x[entries] = values.
[[nodiscard]] Tensor index_put(const Tensor& x, const std::vector<Index>& entries, const Tensor& values,
                               IndexPutOptions options = {});
[[nodiscard]] Tensor index_put(const Tensor& x, const std::vector<Index>& entries, Scalar value,
                               IndexPutOptions options = {});

// x with src[.., j, ..] written to element [.., index[.., j, ..], ..] for every index; shapes as in
// scatter_add().
[[nodiscard]] Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
[[nodiscard]] Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value);

enum class ScatterReduction : std::uint8_t { sum, prod, mean, amax, amin };
struct ScatterOptions {
    bool include_self = true;  // false: the old value of an element that is written does not count
};
// scatter() with all values for an element reduced to one, the old value of x included. Integral means are
// rounded down. Equal extrema share the gradient. prod, amax and amin run on the CPU; other devices copy
// their tensors there. Not for booleans.
[[nodiscard]] Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                                    ScatterReduction reduction, ScatterOptions options = {});

// Whole slices of x along dim, one for each index [n] (or 0-dim). src has the shape of x, but size n at dim.
// x with slice index[j] replaced by slice j of src.
[[nodiscard]] Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
// x with alpha times slice j of src added to slice index[j].
[[nodiscard]] Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                               Scalar alpha = 1);
// x with the slices at index filled with a value. Indices may be negative.
[[nodiscard]] Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, Scalar value);
// scatter_reduce() with slices.
[[nodiscard]] Tensor index_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                                  ScatterReduction reduction, ScatterOptions options = {});

// x with the elements where the boolean mask holds replaced by those of source, in row-major order; x and
// mask broadcast. Error(value) on the CPU if source has fewer elements than the mask needs; on CUDA the
// rest is NaN (0 for integers).
[[nodiscard]] Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source);

// gather() with x and index broadcast outside dim; without dim, of the flattened x and index. Indices may be
// negative.
[[nodiscard]] Tensor take_along_dim(const Tensor& x, const Tensor& index,
                                    std::optional<std::int64_t> dim = {});
// The elements of the flattened x at each index, in the shape of index. Indices may be negative.
[[nodiscard]] Tensor take(const Tensor& x, const Tensor& index);
// x with the elements at each index of the flattened x replaced by those of source, which has the size of
// index. Indices may be negative.
[[nodiscard]] Tensor put(const Tensor& x, const Tensor& index, const Tensor& source,
                         IndexPutOptions options = {});

}  // namespace mezzo

#pragma GCC visibility pop
