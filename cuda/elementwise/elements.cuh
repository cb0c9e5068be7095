// Access to tensor elements in kernels: of a dtype known at compile time (Array) or only at run time
// (AnyArray).
#pragma once

#include <limits>

#include "core/memory/storage.h"
#include "core/tensor_impl.h"
#include "cuda/visit_dtype.cuh"
#include "mezzo/error.h"

namespace mezzo::cuda {

// An array whose dtype is known when the kernel is compiled; computes in Compute<T>.
template <class T> struct Array {
    using C = Compute<T>;
    T* p;
    __device__ C load(std::int64_t i) const { return convert<C>(p[i]); }
    // Elements first, first + step, ...
    template <int n> __device__ void load_many(std::int64_t first, std::int64_t step, C (&out)[n]) const {
        MEZZO_UNROLL
        for (int i = 0; i < n; ++i) out[i] = load(first + i * step);
    }
    __device__ void store(std::int64_t i, C value) const { p[i] = convert<T>(value); }
};

// An array whose dtype is known only when the kernel runs; computes in Acc. Each access costs one more
// branch, which all threads take the same way.
template <class Acc> struct AnyArray {
    using C = Acc;
    void* p;
    Dtype dtype;
    __device__ C load(std::int64_t i) const { return load_as<C>(p, dtype, i); }
    template <int n> __device__ void load_many(std::int64_t first, std::int64_t step, C (&out)[n]) const {
        load_many_as<C>(p, dtype, first, step, out);
    }
    __device__ void store(std::int64_t i, C value) const { store_as(p, dtype, i, value); }
};

template <class T> Array<T> array_of(const Tensor& x) { return {static_cast<T*>(raw(x))}; }
template <class C> AnyArray<C> any_of(const Tensor& x) { return {raw(x), x.dtype()}; }

// Makes the tensor's device the current device of the calling thread.
inline void use_device_of(const Tensor& x) {
    if (x.device().index != current_device()) set_device(x.device().index);
}

// Type that an op computes in: float64 if any operand is float64, else float32 if any is floating, else
// int64.
enum class ComputeKind : std::uint8_t { float32, float64, integer };
inline ComputeKind wider(ComputeKind kind, Dtype dtype) {
    if (dtype == float64 || kind == ComputeKind::float64) return ComputeKind::float64;
    return is_floating(dtype) ? ComputeKind::float32 : kind;
}
inline ComputeKind compute_kind(std::initializer_list<Dtype> dtypes) {
    ComputeKind kind = ComputeKind::integer;
    for (Dtype dtype : dtypes) kind = wider(kind, dtype);
    return kind;
}

// Calls f(C()) with the type of the kind.
template <class F> void with_compute_type(ComputeKind kind, const F& f) {
    switch (kind) {
        case ComputeKind::float64:
            return f(double());
        case ComputeKind::float32:
            return f(float());
        case ComputeKind::integer:
            return f(std::int64_t());
    }
}
// The same for ops without integers: double if any operand is float64, else float.
template <class F> void with_real(std::initializer_list<Dtype> dtypes, const F& f) {
    compute_kind(dtypes) == ComputeKind::float64 ? f(double()) : f(float());
}

// A scalar attribute in the compute type; integers saturate, NaN becomes 0.
template <class C> C scalar_as(double value) {
    if constexpr (std::is_same_v<C, std::int64_t>) {
        if (value != value) return 0;
        if (value >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
        if (value <= -0x1p63) return std::numeric_limits<std::int64_t>::min();
    }
    return static_cast<C>(value);
}

// Device memory for intermediate results of one kernel call. Freed memory is reused in stream order only, so
// that it may be freed before the kernels that use it have run.
class Scratch {
public:
    Scratch(Device device, std::int64_t bytes)
        : storage_(allocate_storage(static_cast<std::size_t>(bytes), device)) {}
    template <class T> T* as() const { return static_cast<T*>(storage_->data); }

private:
    Ref<Storage> storage_;
};

}  // namespace mezzo::cuda
