#include "cuda/reduce/ordered_mean.h"

#include "cuda/kernel.cuh"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

constexpr unsigned block = 256;

template <class T> __global__ void pack_kernel(const float* from, T* to, std::int64_t n, float factor) {
    for (std::int64_t i = first_item(); i < n; i += item_step()) to[i] = from_float<T>(from[i] * factor);
}

template <class T>
__global__ void add_kernel(const T* pieces, int ranks, T* to, std::int64_t n, float factor) {
    for (std::int64_t i = first_item(); i < n; i += item_step()) {
        float sum = to_float(pieces[i]);
        for (int rank = 1; rank < ranks; ++rank) sum += to_float(pieces[rank * n + i]);
        to[i] = from_float<T>(sum * factor);
    }
}

template <class T> __global__ void widen_kernel(const T* from, float* to, std::int64_t n) {
    for (std::int64_t i = first_item(); i < n; i += item_step()) to[i] = to_float(from[i]);
}

// Calls f with a value of the dtype's C++ type.
template <class F> void visit(Dtype dtype, const F& f) {
    if (dtype == float32)
        f(float());
    else if (dtype == float16)
        f(float16_t());
    else if (dtype == bfloat16)
        f(bfloat16_t());
    else
        fail(ErrorKind::dtype, "ordered mean: no ", dtype, "; float32, float16 and bfloat16 are there");
}

}  // namespace

void pack_shares(const void* from, void* to, std::int64_t count, Dtype dtype, float factor) {
    visit(dtype, [&](auto type) {
        using T = decltype(type);
        launch(pack_kernel<T>, grid_for(count, block), block, 0, static_cast<const float*>(from),
               static_cast<T*>(to), count, factor);
    });
}

void add_pieces(const void* pieces, int ranks, void* to, std::int64_t count, Dtype dtype, float factor) {
    visit(dtype, [&](auto type) {
        using T = decltype(type);
        launch(add_kernel<T>, grid_for(count, block), block, 0, static_cast<const T*>(pieces), ranks,
               static_cast<T*>(to), count, factor);
    });
}

void widen(const void* from, void* to, std::int64_t count, Dtype dtype) {
    visit(dtype, [&](auto type) {
        using T = decltype(type);
        launch(widen_kernel<T>, grid_for(count, block), block, 0, static_cast<const T*>(from),
               static_cast<float*>(to), count);
    });
}

}  // namespace mezzo::cuda
