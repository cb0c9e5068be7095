// Operands and comparison for the check that a GEMM algorithm sums all its terms.
#include "cuda/gemm.h"
#include "cuda/gemm_device.cuh"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

__global__ void ones_kernel(void* matrix, Dtype dtype, std::int64_t elements, std::int64_t ld,
                            std::int64_t stride, bool k_is_row, std::int64_t first_one) {
    for (std::int64_t i = first_item(); i < elements; i += item_step()) {
        const std::int64_t in_matrix = stride > 0 ? i % stride : i;
        const std::int64_t k = k_is_row ? in_matrix % ld : in_matrix / ld;
        store(matrix, dtype, i, k >= first_one ? 1.0f : 0.0f);
    }
}

__global__ void different_kernel(const void* matrix, Dtype dtype, std::int64_t m, std::int64_t n,
                                 std::int64_t ld, std::int64_t batch, std::int64_t stride, double expected,
                                 unsigned long long* count) {
    unsigned long long different = 0;
    for (std::int64_t i = first_item(); i < m * n * batch; i += item_step()) {
        const std::int64_t at = i / (m * n) * stride + i / m % n * ld + i % m;
        different += !(load<double>(matrix, dtype, at) == expected);  // counts NaN too
    }
    different = block_reduce(different, 0ull, Sum());
    if (threadIdx.x == 0 && different != 0) atomicAdd(count, different);
}

}  // namespace

void fill_ones(void* matrix, Dtype dtype, std::int64_t elements, std::int64_t ld, std::int64_t stride,
               bool k_is_row, std::int64_t k, std::int64_t tail) {
    launch(ones_kernel, grid_for(elements, 256), 256, 0, matrix, dtype, elements, ld, stride, k_is_row,
           tail > 0 ? k - tail : 0);
}

std::int64_t count_different(const void* matrix, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t ld,
                             std::int64_t batch, std::int64_t stride, double expected) {
    auto* count = static_cast<unsigned long long*>(device_malloc(sizeof(unsigned long long)));
    check(count != nullptr, ErrorKind::memory, "gemm: no 8 bytes of device memory to verify an algorithm");
    fill_zero(count, sizeof *count);
    launch(different_kernel, grid_for(m * n * batch, 256), 256, 0, matrix, dtype, m, n, ld, batch, stride,
           expected, count);
    unsigned long long different = 0;
    copy_to_host(&different, count, sizeof different);
    device_free(count);
    return static_cast<std::int64_t>(different);
}

}  // namespace mezzo::cuda
