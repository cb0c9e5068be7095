// A bias in every row of C, for products that add to C.
#include "cuda/gemm/device.cuh"
#include "cuda/gemm/gemm.h"

namespace mezzo::cuda {
namespace {

template <class T> __global__ void bias_rows_kernel(Gemm g, const T* bias, T* matrix) {
    for (std::int64_t i = first_item(); i < g.batch * g.m * g.n; i += item_step()) {
        const std::int64_t row = i / g.n, column = i % g.n;
        matrix[row / g.m * g.stride_c + row % g.m * g.ldc + column] = bias[column];
    }
}

}  // namespace

void gemm_bias_rows(const Gemm& g, void* matrix) {
    visit_dtype<Dtypes::floating>(g.c_type, [&]<class T>(std::type_identity<T>) {
        launch(bias_rows_kernel<T>, grid_for(g.batch * g.m * g.n), 256, 0, g, static_cast<const T*>(g.bias),
               static_cast<T*>(matrix));
    });
}

}  // namespace mezzo::cuda
