// Products of windows by gemm(): the windows are copied to a matrix, as many rows at a time as stay in the
// cache. A matrix that lies there already, as with a kernel of one tap, is used in place.
#include "cpu/window_product.h"

#include <algorithm>
#include <cstring>

#include "cpu/buffer.h"
#include "cpu/depthwise.h"
#include "cpu/gemm.h"
#include "cpu/gemm_blocks.h"
#include "cpu/gemm_choice.h"
#include "cpu/isa_tables.h"
#include "cpu/parallel.h"
#include "cpu/tile_gemm.h"
#include "cpu/window_gradient.h"
#include "cpu/window_rows.h"

namespace mezzo::cpu {
namespace {

// Of a matrix of windows: what stays in the L2 cache, but more rows than that if the weight is large, which
// gemm() packs for each matrix.
constexpr std::int64_t chunk_bytes = 1 << 19, most_bytes = 1 << 22, least_rows = 256;

// Per thread that calls; grows to the size of a chunk.
struct Scratch {
    Buffer windows, result;
};
Scratch& scratch() {
    thread_local Scratch s;
    return s;
}

// How many of `count` windows to copy at once: a number that depends on the product only.
std::int64_t chunk_rows(const Windows& x) {
    const std::int64_t row = std::max<std::int64_t>(1, x.steps() * std::int64_t(size_of(x.type)));
    const std::int64_t rows = std::max(chunk_bytes / row, std::min(least_rows, most_bytes / row));
    return std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(1, x.count()));
}

// Whether the source itself is the matrix of windows.
bool in_place(const Windows& x) {
    return x.taps.size() == 1 && x.taps[0].h == 0 && x.taps[0].w == 0 && x.step == Size2d(1) &&
           x.rows == x.height && x.columns == x.width;
}

Windows group_of(const Windows& x, std::int64_t group) {
    Windows one = x;
    if (one.data) one.data += group * x.channels * std::int64_t(size_of(x.type));
    return one;
}

// Windows [begin, begin + n) as a matrix.
struct WindowMatrix {
    const char* data;
    std::int64_t ld;
};
WindowMatrix matrix_of(const Windows& x, std::int64_t begin, std::int64_t n) {
    const auto size = std::int64_t(size_of(x.type));
    if (in_place(x)) return {x.data ? x.data + begin * x.pixel * size : nullptr, x.pixel};
    const std::int64_t row = x.steps() * size;
    char* const to = scratch().windows.get<char>(n * row);
    parallel_for(
        n, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(row, 1)),
        [&](std::int64_t first, std::int64_t end) { x.copy(begin + first, end - first, to + first * row); });
    return {to, x.steps()};
}

// The weight of one group as op(B) [steps, columns], copied if it is transposed and has several taps.
class WeightMatrix {
public:
    WeightMatrix(const WindowProduct& p, std::int64_t group) {
        const ConvWeight& w = p.weight;
        const auto size = std::int64_t(size_of(w.type));
        const char* const from = w.data ? w.data + group * p.group_outputs() * w.row() * size : nullptr;
        data = from, ld = w.row(), transposed = !p.transposed;
        if (!p.transposed || (p.windows.taps.size() == 1 && w.taps == 1)) return;
        ld = w.inputs;
        char* to = copy_.get<char>(p.windows.steps() * w.inputs * size);
        data = to;
        for (const Tap& tap : p.windows.taps)
            for (std::int64_t o = 0; o < p.group_outputs(); ++o, to += w.inputs * size)
                std::memcpy(to, from + (o * w.row() + tap.index * w.inputs) * size,
                            std::size_t(w.inputs * size));
    }
    const char* data;
    std::int64_t ld;
    bool transposed;

private:
    Buffer copy_;
};

// Copies dense rows of pixels to their places in the result.
void place(const WindowProduct& p, std::int64_t group, std::int64_t begin, std::int64_t n, const char* from) {
    const Windows& x = p.windows;
    const auto size = std::int64_t(size_of(p.result.type)), bytes = p.columns() * size;
    char* const to = p.result.data + group * bytes;
    for (std::int64_t i = begin; i < begin + n; ++i, from += bytes) {
        const std::int64_t at =
            p.result.element(i / x.columns / x.rows, i / x.columns % x.rows, i % x.columns);
        std::memcpy(to + at * size, from, std::size_t(bytes));
    }
}

void multiply_group(const WindowProduct& p, std::int64_t group) {
    const Windows x = group_of(p.windows, group);
    const WeightMatrix weight(p, group);
    const auto size = std::int64_t(size_of(p.result.type)), columns = p.columns();
    Gemm g{.n = columns, .k = x.steps(), .trans_b = weight.transposed};
    g.a_type = x.type;
    g.b = weight.data, g.b_type = p.weight.type, g.ldb = weight.ld;
    g.c_type = p.result.type;
    g.bias = p.bias ? p.bias + group * columns * std::int64_t(size_of(p.bias_type)) : nullptr;
    g.bias_type = p.bias_type;
    const bool direct = p.result.dense();
    const std::int64_t rows = in_place(x) && direct ? x.count() : chunk_rows(x);
    for (std::int64_t begin = 0; begin < x.count(); begin += rows) {
        g.m = std::min(rows, x.count() - begin);
        const WindowMatrix a = matrix_of(x, begin, g.m);
        g.a = a.data, g.lda = a.ld;
        g.ldc = direct ? p.result.pixel : columns;
        g.c = direct ? p.result.data + (begin * p.result.pixel + group * columns) * size
                     : scratch().result.get<char>(g.m * columns * size);
        gemm(g);
        if (!direct) place(p, group, begin, g.m, static_cast<const char*>(g.c));
    }
}

// result = beta * result + sums, for a result that is not the sums' own memory.
void finish_gradient(const WindowGradient& p, const float* sums) {
    Gemm g{.m = p.outputs, .n = p.windows.steps(), .beta = float(p.beta)};
    g.c = p.result, g.c_type = p.result_type, g.ldc = g.n;
    finish_sums(gemm_kernels(active_isa()), g, sums, g.n);
}

// Whether gemm() has something better than vectors for a product.
bool has_matrix_units(const Gemm& g) {
    if (g.a_type != g.b_type) return false;
    const GemmKernels& kernels = chosen_gemm_kernels(g);
    if (kernels.depth == 2 && g.a_type == bfloat16) return true;
    return kernels.tiles && worth_packing(g) &&
           tile_product(*kernels.tiles, g.a_type, float32_matmul_precision());
}

bool multiplies_in_place(const WindowProduct& p) {
    if (p.result.type == float64) return false;
    Gemm g{.m = p.windows.count(), .n = p.columns(), .k = p.windows.steps(), .trans_b = !p.transposed};
    g.a_type = p.windows.type, g.b_type = p.weight.type;
    return g.k > 0 && worth_packing(g) && !has_matrix_units(g);
}

bool adds_by_vectors(const WindowGradient& p) {
    if (p.result_type == float64) return false;
    Gemm g{.m = p.group_outputs(), .n = p.windows.steps(), .k = p.windows.count(), .trans_a = true};
    g.a_type = p.gradient_type, g.b_type = p.windows.type;
    return g.k > 0 && worth_packing(g) && !has_matrix_units(g);
}

}  // namespace

void multiply_windows(const WindowProduct& p) {
    if (p.windows.count() == 0) return;
    if (is_depthwise(p)) return multiply_depthwise(p);
    if (multiplies_in_place(p)) return multiply_windows_in_place(p);
    for (std::int64_t group = 0; group < p.groups; ++group) multiply_group(p, group);
}

void add_window_gradient(const WindowGradient& p) {
    if (is_depthwise(p)) return add_depthwise_gradient(p);
    if (adds_by_vectors(p)) return add_window_gradient_by_vectors(p);
    const bool own_sums = p.result_type == float32 || p.result_type == float64;
    const std::int64_t rows = p.group_outputs(), columns = p.windows.steps();
    Buffer buffer;
    char* const sums = own_sums ? p.result : buffer.get<char>(p.outputs * columns * 4);
    Gemm g{.m = rows, .n = columns, .trans_a = true};
    g.a_type = p.gradient_type, g.lda = p.outputs;
    g.b_type = p.windows.type;
    g.c_type = own_sums ? p.result_type : float32, g.ldc = columns;
    const auto size = std::int64_t(size_of(p.gradient_type));
    for (std::int64_t group = 0; group < p.groups; ++group) {
        const Windows x = group_of(p.windows, group);
        const std::int64_t all = x.count(),
                           most = in_place(x) ? std::max<std::int64_t>(all, 1) : chunk_rows(x);
        g.c = sums + group * rows * columns * std::int64_t(size_of(g.c_type));
        std::int64_t begin = 0;
        do {
            g.k = std::min(most, all - begin);
            const WindowMatrix b = matrix_of(x, begin, g.k);
            g.a = p.gradient ? p.gradient + (begin * p.outputs + group * rows) * size : nullptr;
            g.b = b.data, g.ldb = b.ld;
            g.beta = begin > 0 ? 1 : own_sums ? float(p.beta) : 0;
            gemm(g);
            begin += g.k;
        } while (begin < all);
    }
    if (!own_sums) finish_gradient(p, reinterpret_cast<const float*>(sums));
}

}  // namespace mezzo::cpu
