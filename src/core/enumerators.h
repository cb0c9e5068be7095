// Range checks of enumerators that a caller passes.
#pragma once

#include "mezzo/dtype.h"
#include "mezzo/error.h"

namespace mezzo {

// Throws Error(value), "op: what is 9, …", unless the value is one from the first enumerator, which is 0, to
// `last`.
template <class E> void check_enumerator(const char* op, const char* what, E value, E last) {
    check(int(value) >= 0 && int(value) <= int(last), ErrorKind::value, op, ": ", what, " is ", int(value),
          ", which is no enumerator; the last one is ", int(last));
}

inline void check_dtype(const char* op, Dtype dtype) {
    check_enumerator(op, "dtype", dtype, all_dtypes[dtype_count - 1]);
}

}  // namespace mezzo
