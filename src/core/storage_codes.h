// Codes: the bytes that are elements of the dtypes for storage only (int8, float8). Their values, the code of
// a number, and the error of ops that would compute with them.
#pragma once

#include <cstdint>

#include "core/internal.h"
#include "mezzo/dtype.h"

namespace mezzo {

// The 256 values of a dtype for storage only, by code.
const float* values_of_codes(Dtype dtype);

// The code of a number: an integer within int8 for int8, otherwise any number, rounded once as by to().
std::uint8_t code_of(Scalar value, Dtype dtype);

// Throws Error(dtype) in the name of `op`: it does not compute with elements of a dtype for storage only.
[[noreturn]] MEZZO_INTERNAL void refuse_storage_only(const char* op, Dtype dtype);

// Throws the same if the dtype is for storage only.
inline void check_computes(const char* op, Dtype dtype) {
    if (is_storage_only(dtype)) [[unlikely]]
        refuse_storage_only(op, dtype);
}

}  // namespace mezzo
