// Look-ups by int64 index, and their gradients: sums over equal indices.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

// weight [n, dim], index [...] -> [..., dim]. In all kernels of this file an index out of range is an error
// on the CPU. On CUDA look-ups give NaN for it (0 for integers), and sums ignore it.
struct Embedding {
    static constexpr const char* name = "embedding";
    std::int64_t padding_idx = -1;  // only the gradient reads it; -1: none
};
// g [..., dim], index [...] -> [rows, dim]: sums of the rows of equal index.
struct EmbeddingGrad {
    static constexpr const char* name = "embedding_grad";
    std::int64_t rows = 0;          // of the weight
    std::int64_t padding_idx = -1;  // this index adds nothing; -1: none
    bool accumulate = false;        // add to the result's old elements
};
// x, index [count] -> like x with `dim` of size count.
struct IndexSelect {
    static constexpr const char* name = "index_select";
    static constexpr bool any_dtype = true;
    std::int64_t dim = 0;
};
// g, index -> like g with another size of `dim`: sums of the slices of equal index.
struct IndexSelectGrad {
    static constexpr const char* name = "index_select_grad";
    std::int64_t dim = 0;
};
// x, index of equal shapes outside `dim` -> x's elements, shaped like index.
struct Gather {
    static constexpr const char* name = "gather";
    static constexpr bool any_dtype = true;
    std::int64_t dim = 0;
};
// src, index of one shape, and x (none: 0) -> x with src added at index along `dim`.
struct ScatterAdd {
    static constexpr const char* name = "scatter_add";
    std::int64_t dim = 0;
};
// src, index of one shape, and x -> x with src written at index along `dim`; of several values for an element
// the last one stays.
struct Scatter {
    static constexpr const char* name = "scatter";
    std::int64_t dim = 0;
};
// The same with the values for an element and the old one reduced to one. All are float32, float64 or int64;
// a NaN is larger and smaller than everything.
struct ScatterReduce {
    static constexpr const char* name = "scatter_reduce";
    enum class Kind : std::uint8_t { prod, amax, amin };
    std::int64_t dim = 0;
    Kind kind = Kind::prod;
};

}  // namespace mezzo::kernels
