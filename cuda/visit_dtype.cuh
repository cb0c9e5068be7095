// Calls a function with the C++ type of a dtype that is known only when the kernel runs: core/visit_dtype.h
// for device code, which can report no error.
#pragma once

#include "core/visit_dtype.h"
#include "cuda/kernel.cuh"

namespace mezzo::cuda {

// Returns f(std::type_identity<T>()) for the C++ type of a dtype; it must be one of the subset.
template <Dtypes subset = Dtypes::computed, class F>
__device__ decltype(auto) visit_on_device(Dtype dtype, const F& f) {
    switch (dtype) {
#define MEZZO_DTYPE(name, T, ...)                                                       \
    case Dtype::name:                                                                   \
        if constexpr (contains<subset, Dtype::name>) return f(std::type_identity<T>()); \
        break;
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE
    }
    __builtin_unreachable();
}

// Element i of an array of any dtype of the subset, as C.
template <class C, Dtypes subset = Dtypes::computed>
__device__ C load_as(const void* p, Dtype dtype, std::int64_t i) {
    return visit_on_device<subset>(
        dtype, [&]<class T>(std::type_identity<T>) { return convert<C>(static_cast<const T*>(p)[i]); });
}

// Elements first, first + step, ... of the same, with one branch for all, so that their loads are in flight
// together.
template <class C, Dtypes subset = Dtypes::computed, int n>
__device__ void load_many_as(const void* p, Dtype dtype, std::int64_t first, std::int64_t step, C (&out)[n]) {
    visit_on_device<subset>(dtype, [&]<class T>(std::type_identity<T>) {
        T values[n];
        MEZZO_UNROLL
        for (int i = 0; i < n; ++i) values[i] = static_cast<const T*>(p)[first + i * step];
        MEZZO_UNROLL
        for (int i = 0; i < n; ++i) out[i] = convert<C>(values[i]);
    });
}

template <class C, Dtypes subset = Dtypes::computed>
__device__ void store_as(void* p, Dtype dtype, std::int64_t i, C value) {
    visit_on_device<subset>(
        dtype, [&]<class T>(std::type_identity<T>) { static_cast<T*>(p)[i] = convert<T>(value); });
}

}  // namespace mezzo::cuda
