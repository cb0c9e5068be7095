// Helpers of ops with index tensors.
#pragma once

#include "ops/common.h"

namespace mezzo {

// The index in int64. Throws Error(dtype) unless it is int64 or int32.
Tensor int64_index(const char* op, const Tensor& index);

// The index with values below 0 counted from the end of n elements. On the CPU Error(value) for a value
// outside of [-n, n); elsewhere, where a check would wait for the device, the result is outside of [0, n)
// then.
Tensor wrapped_index(const char* op, const Tensor& index, std::int64_t n);

// Input and index of gather() and its like, with at least one dimension.
struct IndexedElements {
    Tensor x, index;
    int dim;
};
// Throws Error(shape) unless index has as many dimensions as x, none of them larger than x's except `dim`.
IndexedElements indexed_elements(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index,
                                 bool takes_any_dtype = false);

// An index of whole slices: [n] in int64, of a 0-dim one as well.
Tensor slice_index(const char* op, const Tensor& index);

// The part of x that index reaches: the first elements of every dimension but dim.
Tensor reached(Tensor x, int dim, const Shape& index);
// The part of src that has the shape of index. Throws Error(shape) if src is smaller somewhere.
Tensor reached_source(const char* op, const Tensor& src, const Tensor& index);
// A copy of x, of which an empty index changes nothing. It has the history of src as well.
Tensor unchanged(const Tensor& x, const Tensor& src);
// x with the part that index reaches replaced by `part`.
Tensor with_reached(const Tensor& x, Tensor part, int dim);

}  // namespace mezzo
