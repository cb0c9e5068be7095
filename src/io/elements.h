// The elements of a contiguous CPU tensor as bytes, and integers of types that mezzo lacks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/internal.h"
#include "mezzo/tensor.h"

namespace mezzo::io {

struct Elements {
    void* data = nullptr;
    std::size_t bytes = 0;
};
MEZZO_INTERNAL Elements elements_of(const Tensor& tensor);

// Writes integers of 1, 2, 4 or 8 bytes in this machine's order into an int32 or int64 tensor, the next wider
// type. Throws Error(value) for an unsigned number that does not fit int64; messages begin with `where`.
MEZZO_INTERNAL void widen_integers(const std::string& where, const std::vector<char>& from, bool is_signed,
                                   int bytes, const Tensor& to);

}  // namespace mezzo::io
