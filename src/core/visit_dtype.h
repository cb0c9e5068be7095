// Dispatch from a dtype, which is known at run time, to its C++ type: the only such switch in the library's
// host code. cuda/visit_dtype.cuh has the one for device code.
#pragma once

#include <type_traits>

#include "mezzo/dtype.h"
#include "mezzo/error.h"

namespace mezzo {

// The set of dtypes that code is compiled for. computed: all but those for storage only; up_to_32bit:
// floating without float64.
enum class Dtypes : std::uint8_t { all, computed, storage, floating, up_to_32bit };

template <Dtypes subset, Dtype dtype> inline constexpr bool contains =
    subset == Dtypes::all        ? true
    : subset == Dtypes::computed ? !is_storage_only(dtype)
    : subset == Dtypes::storage  ? is_storage_only(dtype)
                                 : is_floating(dtype) && (subset == Dtypes::floating || dtype != float64);

// Returns f(std::type_identity<T>()) for the C++ type of a dtype of the subset. Throws Error(dtype) for any
// other.
template <Dtypes subset = Dtypes::computed, class F> decltype(auto) visit_dtype(Dtype dtype, F&& f) {
    switch (dtype) {
#define MEZZO_DTYPE(name, T, ...)                                                       \
    case Dtype::name:                                                                   \
        if constexpr (contains<subset, Dtype::name>) return f(std::type_identity<T>()); \
        break;
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE
    }
    fail(ErrorKind::dtype, "no kernel for elements of ", dtype);
}

}  // namespace mezzo
