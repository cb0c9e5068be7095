// Access of the optimizer update to a parameter's numbers: of one dtype, or of two halves.
#pragma once

#include "cuda/optim/step_table.cuh"
#include "kernels/narrow_state.h"

namespace mezzo::cuda {

template <class C> __device__ C load_param(const UpdateRef& p, std::int64_t i) {
    if (!p.split) return load_as<C>(p.param, p.dtype, i);
    const auto *high = static_cast<const std::uint16_t*>(p.param),
               *low = static_cast<const std::uint16_t*>(p.copy16);
    return static_cast<C>(functors::number_of(functors::joined(high[i], low[i])));
}
// Stores a new value in the parameter and, if it has one, in its 16-bit copy.
template <class C> __device__ void store_param(const UpdateRef& p, std::int64_t i, C value) {
    if (p.split) {
        const auto halves = functors::halves_of(functors::bits_of(static_cast<float>(value)));
        static_cast<std::uint16_t*>(p.param)[i] = halves.high;
        static_cast<std::uint16_t*>(p.copy16)[i] = halves.low;
        return;
    }
    store_as(p.param, p.dtype, i, value);
    if (p.copy16 != nullptr) store_as(p.copy16, p.copy16_dtype, i, value);
}

inline constexpr int step_width = 4;  // elements per thread and access
template <class T> using StepVec = Vec<T, step_width>;

template <class T> __device__ StepVec<T>& vector_at(void* p, std::int64_t i) {
    return *reinterpret_cast<StepVec<T>*>(static_cast<T*>(p) + i);
}

template <class T> __device__ void store_copy16(void* copy16, std::int64_t i, const StepVec<float>& value) {
    StepVec<T> rounded;
    for (int k = 0; k < step_width; ++k) rounded.v[k] = from_float<T>(value.v[k]);
    vector_at<T>(copy16, i) = rounded;
}

__device__ inline StepVec<float> load_params(const UpdateRef& p, std::int64_t i) {
    if (!p.split) return vector_at<float>(p.param, i);
    const StepVec<std::uint16_t> high = vector_at<std::uint16_t>(p.param, i),
                                 low = vector_at<std::uint16_t>(p.copy16, i);
    StepVec<float> value;
    for (int k = 0; k < step_width; ++k)
        value.v[k] = functors::number_of(functors::joined(high.v[k], low.v[k]));
    return value;
}
__device__ inline void store_params(const UpdateRef& p, std::int64_t i, const StepVec<float>& value) {
    if (p.split) {
        StepVec<std::uint16_t> high, low;
        for (int k = 0; k < step_width; ++k) {
            const auto halves = functors::halves_of(functors::bits_of(value.v[k]));
            high.v[k] = halves.high;
            low.v[k] = halves.low;
        }
        vector_at<std::uint16_t>(p.param, i) = high;
        vector_at<std::uint16_t>(p.copy16, i) = low;
        return;
    }
    vector_at<float>(p.param, i) = value;
    if (p.copy16 == nullptr) return;
    if (p.copy16_dtype == Dtype::float16)
        store_copy16<float16_t>(p.copy16, i, value);
    else
        store_copy16<bfloat16_t>(p.copy16, i, value);
}

__device__ inline bool aligned(const void* p, std::size_t element) {
    return reinterpret_cast<std::uintptr_t>(p) % (element * step_width) == 0;
}

// Whether load_params() and store_params() can take the parameter.
__device__ inline bool params_fit_vectors(const UpdateRef& p) {
    return (p.dtype == Dtype::float32 || p.split) && aligned(p.param, p.split ? 2 : 4) &&
           aligned(p.copy16, 2);
}

}  // namespace mezzo::cuda
