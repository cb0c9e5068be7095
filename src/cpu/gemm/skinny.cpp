// Products with few rows or few columns: the larger operand is read once, unpacked. Products without steps.
#include "cpu/gemm/skinny.h"

#include <algorithm>

#include "cpu/buffer.h"
#include "cpu/elementwise/convert.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/gemm/operand.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t longest_k = 2048;  // multiplied at once

// Buffers of each thread. rows belongs to the thread that called, the others to each that computes.
struct Scratch {
    Buffer rows, totals, tile, own;
};
Scratch& scratch() {
    thread_local Scratch s;
    return s;
}

template <class T> void gather(const Operand& x, std::int64_t i, std::int64_t k, float* to) {
    const T* from = static_cast<const T*>(x.data) + i;
    for (std::int64_t p = 0; p < k; ++p) to[p] = static_cast<float>(from[p * x.ld]);
}

// Copies x to float32 rows of k elements, filled up with zeros to ldx.
void read_rows(const Operand& x, std::int64_t rows, std::int64_t k, float* to, std::int64_t ldx) {
    for (std::int64_t i = 0; i < rows; ++i) {
        float* row = to + i * ldx;
        if (x.along_k || x.ld == 1)
            convert(element(x.data, x.type, x.along_k ? i * x.ld : i), x.type, row, float32, k);
        else if (x.type == float32)
            gather<float>(x, i, k, row);
        else if (x.type == bfloat16)
            gather<bfloat16_t>(x, i, k, row);
        else
            gather<float16_t>(x, i, k, row);
        std::fill(row + k, row + ldx, 0.0f);
    }
}

// The products of few rows with the columns of another operand. A long k is cut into pieces that are
// converted and multiplied on their own and added up in double, so that the rounding of a sum does not grow
// with k.
struct FewRows {
    const GemmKernels& kernels;
    std::int64_t rows, k, ldx;
    Operand source;
    const float* packed = nullptr;  // all of the rows, unless k is cut

    FewRows(const GemmKernels& kernels_, const Operand& x, std::int64_t rows_, std::int64_t k_)
        : kernels(kernels_),
          rows(rows_),
          k(k_),
          ldx(round_up(cut() ? longest_k : k_, kernels_.lanes)),
          source(x) {
        if (cut()) return;
        float* const to = scratch().rows.get<float>(rows * ldx);
        read_rows(source, rows, k, to, ldx);
        packed = to;
    }
    bool cut() const { return k > longest_k; }

    void multiply(const Operand& y, std::int64_t columns, float* t, std::int64_t ldt) const {
        if (!cut()) return kernels.skinny(packed, ldx, rows, y, columns, k, t, ldt);
        double* const sums = scratch().totals.get<double>(rows * columns);
        std::fill_n(sums, rows * columns, 0.0);
        float* const x = scratch().own.get<float>(rows * ldx);
        for (std::int64_t p = 0; p < k; p += longest_k) {
            const std::int64_t left = std::min(longest_k, k - p);
            read_rows(from_step(source, p), rows, left, x, ldx);
            kernels.skinny(x, ldx, rows, from_step(y, p), columns, left, t, ldt);
            for (std::int64_t i = 0; i < rows; ++i)
                for (std::int64_t j = 0; j < columns; ++j) sums[i * columns + j] += double(t[i * ldt + j]);
        }
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < columns; ++j) t[i * ldt + j] = float(sums[i * columns + j]);
    }

private:
    static Operand from_step(Operand x, std::int64_t p) {
        x.data = element(x.data, x.type, x.along_k ? p : p * x.ld);
        return x;
    }
};

}  // namespace

// For an op(A) with few rows: op(B) is read once, unpacked.
void multiply_few_rows(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    const FewRows x(kernels, rows_of_a(g, 0, 0), g.m, g.k);
    // Columns at once: their sums stay in the L1 cache. The last vector of a row must end within the row.
    const std::int64_t unit = 32, width = std::max<std::int64_t>(512, 4096 / g.m / unit * unit);
    parallel_for((g.n + unit - 1) / unit, grain((g.n + unit - 1) / unit, 8 * g.m * g.n * g.k),
                 [&](std::int64_t begin, std::int64_t end) {
                     float* t = scratch().tile.get<float>(g.m * width);
                     const std::int64_t last = std::min(g.n, end * unit);
                     for (std::int64_t j = begin * unit; j < last; j += width) {
                         const std::int64_t columns = std::min(width, last - j);
                         x.multiply(columns_of_b(g, 0, j), columns, t, width);
                         finish_block(kernels, g, bias, 0, j, g.m, columns, t, width);
                     }
                 });
}

void multiply_panels(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    const std::int64_t ldx = round_up(g.k, std::max<std::int64_t>(kernels.lanes, packed_steps));
    float* const x = scratch().rows.get<float>(g.m * ldx);
    read_rows(rows_of_a(g, 0, 0), g.m, g.k, x, ldx);
    constexpr std::int64_t width = 512;
    const std::int64_t panels = (g.n + packed_columns - 1) / packed_columns,
                       panel = packed_columns * round_up(g.k, packed_steps);
    parallel_for(panels, grain(panels, 8 * g.m * g.n * g.k), [&](std::int64_t begin, std::int64_t end) {
        float* const t = scratch().tile.get<float>(g.m * width);
        for (std::int64_t i = begin; i < end; i += width / packed_columns) {
            const std::int64_t count = std::min(width / packed_columns, end - i), j = i * packed_columns;
            kernels.panels(x, ldx, g.m, element(g.b_panels, g.b_type, i * panel), g.b_type, g.k, count, t,
                           width);
            finish_block(kernels, g, bias, 0, j, g.m, std::min(count * packed_columns, g.n - j), t, width);
        }
    });
}

void multiply_codes(const GemmKernels& kernels, const Gemm& g, const CodeScale& scale) {
    const std::int64_t ldx = round_up(g.k, code_steps);
    float* const x = scratch().rows.get<float>(g.m * ldx + g.n);
    read_rows(rows_of_a(g, 0, 0), g.m, g.k, x, ldx);
    float* const bias = g.bias ? x + g.m * ldx : nullptr;
    if (bias) convert(g.bias, g.bias_type, bias, float32, g.n);
    constexpr std::int64_t width = 32;  // columns at once: their scales stay in the L1 cache
    const std::int64_t units = (g.n + width - 1) / width;
    const std::int64_t parts = scale.groups > 1 ? g.k / code_steps : 1, each = parts / scale.groups;
    const float factor = g.b_type == float8_e4m3fn ? 256 : 1;  // CodeProduct::scale
    parallel_for(units, grain(units, 8 * g.m * g.n * g.k), [&](std::int64_t begin, std::int64_t end) {
        float* const t = scratch().tile.get<float>((g.m + parts) * width);
        float* const scales = t + g.m * width;
        for (std::int64_t j = begin * width; j < std::min(g.n, end * width); j += width) {
            const std::int64_t count = std::min(width, g.n - j), factors = count * scale.groups;
            float* const given = scales + count * (parts - scale.groups);  // is expanded from the front
            convert(element(scale.data, scale.type, j * scale.groups), scale.type, given, float32, factors);
            for (std::int64_t i = 0; i < factors; ++i) given[i] *= factor;
            for (std::int64_t i = 0; each > 1 && i < factors; ++i)
                std::fill_n(scales + i * each, each, float(given[i]));
            kernels.codes({x, ldx, g.m, element(g.b, g.b_type, j * g.k), g.b_type, scales, parts, g.k, count,
                           t, width});
            finish_block(kernels, g, bias, 0, j, g.m, count, t, width);
        }
    });
}

// For an op(B) with few columns: computes C^T = op(B)^T op(A)^T block by block and transposes it back before
// the epilogue.
void multiply_few_columns(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    const FewRows x(kernels, columns_of_b(g, 0, 0), g.n, g.k);
    constexpr std::int64_t width = 512;
    const std::int64_t unit = 32, ldt = round_up(g.n, kernels.lanes);
    parallel_for((g.m + unit - 1) / unit, grain((g.m + unit - 1) / unit, 8 * g.m * g.n * g.k),
                 [&](std::int64_t begin, std::int64_t end) {
                     float* sums = scratch().tile.get<float>((g.n + ldt) * width);
                     float* t = sums + g.n * width;
                     const std::int64_t last = std::min(g.m, end * unit);
                     for (std::int64_t i = begin * unit; i < last; i += width) {
                         const std::int64_t rows = std::min(width, last - i);
                         x.multiply(rows_of_a(g, i, 0), rows, sums, width);
                         for (std::int64_t r = 0; r < rows; ++r)
                             for (std::int64_t j = 0; j < g.n; ++j) t[r * ldt + j] = sums[j * width + r];
                         finish_block(kernels, g, bias, i, 0, rows, g.n, t, ldt);
                     }
                 });
}

// The epilogue's result for sums that are zero.
void multiply_no_steps(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    constexpr std::int64_t width = 1024;
    const auto rows_at_once = std::max<std::int64_t>(1, 64 * width / g.n);
    parallel_for(g.m, rows_at_once, [&](std::int64_t begin, std::int64_t end) {
        float* zeros = scratch().tile.get<float>(width);
        std::fill(zeros, zeros + width, 0.0f);
        for (std::int64_t j = 0; j < g.n; j += width)
            finish_block(kernels, g, bias, begin, j, end - begin, std::min(width, g.n - j), zeros, 0);
    });
}

}  // namespace mezzo::cpu
