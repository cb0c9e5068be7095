// Float64 matrix product, for reference results and double-precision training: blocked, not tuned per
// instruction set.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/elementwise/convert.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t block_rows = 32, block_columns = 128, block_k = 256;

double activate(Activation activation, double x) {
    constexpr double sqrt_half = 0.70710678118654752440, sqrt_2_over_pi = 0.79788456080286535588;
    switch (activation) {
        case Activation::none:
            break;
        case Activation::relu:
            return x < 0 ? 0 : x;
        case Activation::gelu:
            return x * 0.5 * std::erfc(-x * sqrt_half);
        case Activation::gelu_tanh:
            return x / (1 + std::exp(-2 * sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
    }
    return x;
}

// to[r, c] = from[(i + r), (j + c)] of the matrix op(X) stored with leading dimension ld.
void copy_block(const double* from, std::int64_t ld, bool transposed, std::int64_t i, std::int64_t j,
                std::int64_t rows, std::int64_t columns, double* to) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
            to[r * columns + c] = transposed ? from[(j + c) * ld + i + r] : from[(i + r) * ld + j + c];
}

// t[rows, columns] += a[rows, k] b[k, columns], four steps of k at a time.
void multiply(const double* a, const double* b, std::int64_t rows, std::int64_t columns, std::int64_t k,
              double* t) {
    for (std::int64_t r = 0; r < rows; ++r, a += k, t += columns) {
        std::int64_t p = 0;
        for (; p + 4 <= k; p += 4) {
            const double *b0 = b + p * columns, *b1 = b0 + columns, *b2 = b1 + columns, *b3 = b2 + columns;
            const double a0 = a[p], a1 = a[p + 1], a2 = a[p + 2], a3 = a[p + 3];
            for (std::int64_t c = 0; c < columns; ++c)
                t[c] += (a0 * b0[c] + a1 * b1[c]) + (a2 * b2[c] + a3 * b3[c]);
        }
        for (; p < k; ++p)
            for (std::int64_t c = 0; c < columns; ++c) t[c] += a[p] * b[p * columns + c];
    }
}

void finish(const Gemm& g, const double* bias, std::int64_t i, std::int64_t j, std::int64_t rows,
            std::int64_t columns, const double* t) {
    for (std::int64_t r = 0; r < rows; ++r) {
        double* c = static_cast<double*>(g.c) + (i + r) * g.ldc + j;
        double* pre =
            g.pre_activation ? static_cast<double*>(g.pre_activation) + (i + r) * g.ldc + j : nullptr;
        const double* const added = g.added ? static_cast<const double*>(g.added) + (i + r) * g.ldc + j : c;
        for (std::int64_t q = 0; q < columns; ++q) {
            double v = t[r * columns + q] * static_cast<double>(g.alpha);
            if (bias) v += bias[j + q];
            if (g.beta != 0.0f) v += static_cast<double>(g.beta) * added[q];
            if (pre) pre[q] = v;
            c[q] = activate(g.activation, v);
        }
    }
}

}  // namespace

void gemm_f64(const Gemm& g) {
    std::vector<double> bias(g.bias ? static_cast<std::size_t>(g.n) : 0);
    if (g.bias) convert(g.bias, g.bias_type, bias.data(), float64, g.n);
    const std::int64_t down = (g.m + block_rows - 1) / block_rows;
    const std::int64_t across = (g.n + block_columns - 1) / block_columns;
    const std::int64_t grain =
        (std::int64_t(1) << 19) / (block_rows * block_columns * std::max<std::int64_t>(g.k, 1));
    parallel_for(down * across, std::max<std::int64_t>(1, grain), [&](std::int64_t begin, std::int64_t end) {
        std::vector<double> a(block_rows * block_k), b(block_k * block_columns),
            t(block_rows * block_columns);
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u / across * block_rows, j = u % across * block_columns;
            const std::int64_t rows = std::min(block_rows, g.m - i),
                               columns = std::min(block_columns, g.n - j);
            std::fill(t.begin(), t.end(), 0.0);
            for (std::int64_t p = 0; p < g.k; p += block_k) {
                const std::int64_t k = std::min(block_k, g.k - p);
                copy_block(static_cast<const double*>(g.a), g.lda, g.trans_a, i, p, rows, k, a.data());
                copy_block(static_cast<const double*>(g.b), g.ldb, g.trans_b, p, j, k, columns, b.data());
                multiply(a.data(), b.data(), rows, columns, k, t.data());
            }
            finish(g, g.bias ? bias.data() : nullptr, i, j, rows, columns, t.data());
        }
    });
}

}  // namespace mezzo::cpu
