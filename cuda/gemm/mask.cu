// Mask of a ReLU layer's result (kernels/activation.h), for products whose mask the GEMM library has not
// made.
#include "cuda/gemm/gemm.h"
#include "cuda/visit_dtype.cuh"

namespace mezzo::cuda {
namespace {

// A thread makes one byte: 8 adjacent elements of a row, read in accesses of `pack` elements. Bits past the
// end of the row are 0. A NaN counts as positive, as in relu's own gradient.
template <class T, int pack> __global__ void mask_kernel(const T* x, std::uint8_t* mask, std::int64_t rows,
                                                         std::int64_t cols, std::int64_t row_bytes) {
    for (std::int64_t i = first_item(); i < rows * row_bytes; i += item_step()) {
        const std::int64_t row = i / row_bytes, first = i % row_bytes * 8;
        unsigned byte = 0;
        for (int begin = 0; begin < 8 && first + begin < cols; begin += pack) {
            const auto values = *reinterpret_cast<const Vec<T, pack>*>(x + row * cols + first + begin);
            MEZZO_UNROLL
            for (int k = 0; k < pack; ++k)
                byte |= unsigned(!(convert<Compute<T>>(values.v[k]) <= Compute<T>(0))) << (begin + k);
        }
        mask[i] = static_cast<std::uint8_t>(byte);
    }
}

template <class T> void run(const Gemm& g) {
    constexpr int pack = 16 / sizeof(T);
    const std::int64_t row_bytes = relu_mask_ld(g.n) / 8;
    const bool whole = g.n % pack == 0 && reinterpret_cast<std::uintptr_t>(g.c) % 16 == 0;
    launch(whole ? mask_kernel<T, pack> : mask_kernel<T, 1>, grid_for(g.m * row_bytes), 256, 0,
           static_cast<const T*>(g.c), static_cast<std::uint8_t*>(g.mask), g.m, g.n, row_bytes);
}

}  // namespace

void gemm_mask(const Gemm& g) {
    visit_dtype<Dtypes::floating>(g.c_type, [&]<class T>(std::type_identity<T>) { run<T>(g); });
}

}  // namespace mezzo::cuda
