// A tensor as a matrix of its rows.
#pragma once

#include <algorithm>

#include "core/tensor_impl.h"

namespace mezzo {

// A contiguous tensor with at least one dimension as [product of the other sizes, last size], on the same
// storage and without history; x itself if it has two dimensions.
inline Tensor as_rows(const Tensor& x) {
    if (x.dim() == 2) return x;
    const std::int64_t columns = x.shape().back();
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.shape()[d];
    return make_tensor(x->storage, {rows, columns}, {std::max<std::int64_t>(columns, 1), 1}, x->offset,
                       x.dtype());
}

// The distance of the rows, in elements, of a tensor with unit stride in its last dimension and equally
// spaced rows.
inline std::int64_t row_stride(const Tensor& x) {
    const int d = x.dim();
    const std::int64_t columns = std::max<std::int64_t>(x.shape().back(), 1);
    return d < 2 || x.shape()[d - 2] <= 1 ? columns : std::max(x.strides()[d - 2], columns);
}

}  // namespace mezzo
