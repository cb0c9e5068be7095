// Operands and comparisons for the check of a GEMM algorithm.
#include "cuda/gemm/check.h"
#include "cuda/gemm/device.cuh"
#include "cuda/gemm/memory.h"
#include "kernels/activation.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

// Numbers without a pattern, so that results in a wrong order do not match them.
__device__ unsigned mixed(std::int64_t i, std::int64_t j) {
    unsigned h = unsigned(i) * 0x9E3779B9u ^ (unsigned(j) + 0x7F4A7C15u) * 0x85EBCA6Bu;
    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    return h ^ h >> 16;
}
// -1 or 1; 0 one time in eight; NaN in some rows of A.
__device__ float sign_of(std::int64_t i, bool is_b) {
    const unsigned h = mixed(i, is_b ? -2 : -1);
    if (!is_b && h % 16 == 1) return NAN;
    return h % 8 == 0 ? 0.0f : h & 8 ? 1.0f : -1.0f;
}

// Factor of row i of A or column i of B.
__device__ double scale_of(std::int64_t i, bool is_b) {
    const double first = is_b ? first_b_scale : first_a_scale;
    return mixed(i, is_b ? -4 : -3) % 2 == 0 ? first : 2 * first;
}
// Factor of a block of row i of A or column i of B.
__device__ double scale_of(std::int64_t i, std::int64_t block, bool is_b) {
    return (is_b ? first_b_scale : first_a_scale) * (1 << mixed(2 * i + is_b, block) % 4);
}
// Position of the single one in row i of A, in a trial of blocks.
__device__ std::int64_t one_of_row(std::int64_t i, std::int64_t k) { return mixed(i, -5) % k; }

__device__ bool has_signs(Trial trial) { return trial == Trial::signs || trial == Trial::products; }

// k: of the product, for a trial of blocks.
__device__ double expected(Trial trial, std::int64_t i, std::int64_t j, std::int64_t k = 0) {
    if (trial == Trial::blocks) {
        const std::int64_t block = one_of_row(i, k) / kernels::fp8_block;
        return scale_of(i, block, false) * scale_of(j, block, true);
    }
    const float product = has_signs(trial) ? sign_of(i, false) * sign_of(j, true) : 1.0f;
    if (trial == Trial::products) return product;
    if (trial == Trial::bits) return mixed(i, j) & 1u;
    if (trial == Trial::slopes) return 0.5 * (mixed(i, j) % 3);
    if (trial == Trial::scales) return scale_of(i, false) * scale_of(j, true);
    return product <= 0 ? 0.0f : product;  // keeps NaN
}

// Mask bit of the element: NaN counts as positive, as in mask.cu.
__device__ bool is_set(Trial trial, std::int64_t i, std::int64_t j) { return !(expected(trial, i, j) <= 0); }

__global__ void operand_kernel(TrialOperand o, Trial trial) {
    const std::int64_t first_one = o.tail > 0 ? o.k - o.tail : 0;
    for (std::int64_t i = first_item(); i < o.elements; i += item_step()) {
        const std::int64_t in_matrix = o.stride > 0 ? i % o.stride : i;
        const std::int64_t row = in_matrix % o.ld, column = in_matrix / o.ld;
        const std::int64_t k = o.k_is_row ? row : column, other = o.k_is_row ? column : row;
        const float one = has_signs(trial) ? sign_of(other, o.is_b) : 1.0f;
        float term = k == 0 ? float(o.first) * one : one;
        if (trial == Trial::blocks && !o.is_b) term = k == one_of_row(other, o.k) ? 1 : 0;
        store_as<float, Dtypes::all>(o.matrix, o.dtype, i, k >= first_one ? term : 0.0f);
    }
}

__global__ void scales_kernel(float* scales, std::int64_t count, bool is_b, Trial trial) {
    for (std::int64_t i = first_item(); i < count; i += item_step())
        scales[i] = float(trial == Trial::scales ? scale_of(i, is_b) : is_b ? first_b_scale : first_a_scale);
}

__global__ void block_scales_kernel(float8_e8m0fnu_t* scales, std::int64_t lines, std::int64_t blocks,
                                    bool is_b, Trial trial) {
    for (std::int64_t i = first_item(); i < lines * blocks; i += item_step()) {
        const std::int64_t line = i / blocks, block = i % blocks;
        const double scale = trial == Trial::blocks ? scale_of(line, block, is_b)
                             : is_b                 ? first_b_scale
                                                    : first_a_scale;
        scales[tiled_scale(line, block, blocks)] = from_float<float8_e8m0fnu_t>(float(scale));
    }
}

__global__ void mask_kernel(std::uint8_t* mask, std::int64_t m, std::int64_t n, std::int64_t ld,
                            Trial trial) {
    for (std::int64_t byte = first_item(); byte < ld / 8 * n; byte += item_step()) {
        const std::int64_t column = byte / (ld / 8), first = byte % (ld / 8) * 8;
        unsigned bits = 0;
        for (int k = 0; k < 8; ++k) bits |= unsigned(first + k < m && is_set(trial, first + k, column)) << k;
        mask[byte] = static_cast<std::uint8_t>(bits);
    }
}

__global__ void before_kernel(void* matrix, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t ld,
                              Trial trial) {
    for (std::int64_t i = first_item(); i < m * n; i += item_step()) {
        const double slope = expected(trial, i % m, i / m);
        store(matrix, dtype, i / m * ld + i % m, 32 * slope - 16);
    }
}

__device__ void add_to(unsigned long long* count, unsigned long long different) {
    different = block_reduce(different, 0ull, Sum());
    if (threadIdx.x == 0 && different != 0) atomicAdd(count, different);
}

__global__ void different_kernel(TrialResult r, Trial trial, double unit, unsigned long long* count) {
    unsigned long long different = 0;
    for (std::int64_t i = first_item(); i < r.m * r.n * r.batch; i += item_step()) {
        const std::int64_t row = i % r.m, column = i / r.m % r.n;
        const std::int64_t at = i / (r.m * r.n) * r.stride + column * r.ld + row;
        const double got = load<double>(r.matrix, r.dtype, at),
                     wanted = unit * expected(trial, row, column, r.k);
        different += !(got == wanted || (std::isnan(got) && std::isnan(wanted)));
    }
    add_to(count, different);
}

__global__ void different_bits_kernel(const std::uint8_t* mask, std::int64_t m, std::int64_t n,
                                      std::int64_t ld, Trial trial, unsigned long long* count) {
    unsigned long long different = 0;
    for (std::int64_t i = first_item(); i < m * n; i += item_step()) {
        const std::int64_t bit = i / m * ld + i % m;
        different += bool(mask[bit / 8] >> bit % 8 & 1) != is_set(trial, i % m, i / m);
    }
    add_to(count, different);
}

__global__ void different_sums_kernel(const void* sums, Dtype dtype, std::int64_t m, std::int64_t n,
                                      Trial trial, double unit, unsigned long long* count) {
    unsigned long long different = 0;
    for (std::int64_t i = first_item(); i < m; i += item_step()) {
        double sum = 0;
        for (std::int64_t j = 0; j < n; ++j) sum += expected(trial, i, j);
        different += !(load<double>(sums, dtype, i) == unit * sum);
    }
    add_to(count, different);
}

__global__ void different_b_sums_kernel(const void* sums, Dtype dtype, std::int64_t n, Trial trial,
                                        double unit, unsigned long long* count) {
    unsigned long long different = 0;
    for (std::int64_t j = first_item(); j < n; j += item_step()) {
        const double want = has_signs(trial) ? unit * sign_of(j, true) : unit;
        different += !(load<double>(sums, dtype, j) == want);
    }
    add_to(count, different);
}

// Calls count(counter), which launches a kernel that counts on the device, and returns the number.
template <class Count> std::int64_t counted(const Count& count) {
    const GemmScratch counter(sizeof(unsigned long long));
    auto* const total = static_cast<unsigned long long*>(counter.memory);
    fill_zero(total, sizeof *total);
    count(total);
    unsigned long long different = 0;
    copy_to_host(&different, total, sizeof different);
    return static_cast<std::int64_t>(different);
}

}  // namespace

void fill_operand(const TrialOperand& operand, Trial trial) {
    launch(operand_kernel, grid_for(operand.elements), 256, 0, operand, trial);
}

void fill_scales(void* scales, const gemm_plan::Problem& p, bool is_b, Trial trial) {
    const std::int64_t lines = is_b ? p.n : p.m, blocks = p.k / kernels::fp8_block;
    // A NaN in the padding of tiles would spoil the sums.
    if (p.scales == Granularity::block32) fill_zero(scales, std::size_t(scale_bytes(p, lines)));
    if (p.scales == Granularity::block32)
        return launch(block_scales_kernel, grid_for(lines * blocks), 256, 0,
                      static_cast<float8_e8m0fnu_t*>(scales), lines, blocks, is_b, trial);
    const std::int64_t count = p.scales == Granularity::row ? lines : 1;
    launch(scales_kernel, grid_for(count), 256, 0, static_cast<float*>(scales), count, is_b, trial);
}

void fill_mask(void* mask, std::int64_t m, std::int64_t n, Trial trial) {
    const std::int64_t ld = relu_mask_ld(m);
    launch(mask_kernel, grid_for(ld / 8 * n), 256, 0, static_cast<std::uint8_t*>(mask), m, n, ld, trial);
}

void fill_before(void* matrix, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t ld, Trial trial) {
    launch(before_kernel, grid_for(m * n), 256, 0, matrix, dtype, m, n, ld, trial);
}

std::int64_t count_different(const TrialResult& r, Trial trial, double unit) {
    return counted([&](unsigned long long* total) {
        launch(different_kernel, grid_for(r.m * r.n * r.batch), 256, 0, r, trial, unit, total);
    });
}

std::int64_t count_different_bits(const void* mask, std::int64_t m, std::int64_t n, Trial trial) {
    return counted([&](unsigned long long* total) {
        launch(different_bits_kernel, grid_for(m * n), 256, 0, static_cast<const std::uint8_t*>(mask), m, n,
               relu_mask_ld(m), trial, total);
    });
}

std::int64_t count_different_sums(const void* sums, Dtype dtype, std::int64_t m, std::int64_t n, Trial trial,
                                  double unit) {
    return counted([&](unsigned long long* total) {
        launch(different_sums_kernel, grid_for(m), 256, 0, sums, dtype, m, n, trial, unit, total);
    });
}

std::int64_t count_different_b_sums(const void* sums, Dtype dtype, std::int64_t n, Trial trial, double unit) {
    return counted([&](unsigned long long* total) {
        launch(different_b_sums_kernel, grid_for(n), 256, 0, sums, dtype, n, trial, unit, total);
    });
}

}  // namespace mezzo::cuda
