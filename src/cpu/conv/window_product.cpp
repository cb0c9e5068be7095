// Products of windows by gemm(): the windows are copied to a matrix (im2col), as many rows at a time as stay
// in the cache. If the source already is this matrix, as with a kernel of one tap, it is not copied.
#include "cpu/conv/window_product.h"

#include <algorithm>
#include <cstring>

#include "core/round_up.h"
#include "cpu/amx/tile_gemm.h"
#include "cpu/amx/tile_gradient.h"
#include "cpu/amx/tile_windows.h"
#include "cpu/buffer.h"
#include "cpu/conv/merged_groups.h"
#include "cpu/conv/window_paths.h"
#include "cpu/gemm/choice.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

// Sizes of a matrix of windows: a part that stays in the L2 cache, but more rows than that if the weight is
// large, which gemm() packs for each matrix.
constexpr std::int64_t chunk_bytes = 1 << 19, most_bytes = 1 << 22, least_rows = 256;

constexpr std::int64_t tile_columns = 16;
constexpr std::int64_t least_outputs = 4;

// Limits of a gradient whose windows are summed in parts: parts, and the floats of all their sums.
constexpr std::int64_t most_parts = 16, part_floats = 1 << 17;

// Buffers of each thread that calls; they grow to the size of a chunk.
thread_local struct { Buffer windows, result; } scratch;

// Number of windows to copy at once; it depends on the product only.
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
    char* const to = scratch.windows.get<char>(n * row);
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

// Copies dense rows of pixels to their positions in the result.
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

// Windows [begin, begin + g.m) times the weight.
void multiply_chunk(const WindowProduct& p, const Windows& x, std::int64_t group, std::int64_t begin,
                    Gemm g) {
    const auto size = std::int64_t(size_of(p.result.type));
    const WindowMatrix a = matrix_of(x, begin, g.m);
    g.a = a.data, g.lda = a.ld;
    const bool direct = p.result.dense();
    g.ldc = direct ? p.result.pixel : g.n;
    g.c = direct ? p.result.data + (begin * p.result.pixel + group * g.n) * size
                 : scratch.result.get<char>(g.m * g.n * size);
    if (p.residual) g.added = p.residual + (begin * p.result.pixel + group * g.n) * size, g.beta = 1;
    gemm(g);
    if (!direct) place(p, group, begin, g.m, static_cast<const char*>(g.c));
}

void multiply_group(const WindowProduct& p, std::int64_t group) {
    const Windows x = group_of(p.windows, group);
    const WeightMatrix weight(p, group);
    Gemm g{.n = p.columns(), .k = x.steps(), .trans_b = weight.transposed};
    g.a_type = x.type;
    g.b = weight.data, g.b_type = p.weight.type, g.ldb = weight.ld;
    g.c_type = p.result.type;
    g.bias = p.bias ? p.bias + group * g.n * std::int64_t(size_of(p.bias_type)) : nullptr;
    g.bias_type = p.bias_type;
    g.activation = p.activation;
    const std::int64_t rows = in_place(x) && p.result.dense() ? x.count() : chunk_rows(x),
                       chunks = parts_of(x.count(), rows);
    g.m = rows;
    Ref<Storage> packed;
    if (p.weight.tensor && p.groups == 1 && x.count() <= packed_windows)
        packed = read_packed_tiles(*p.weight.tensor, g);
    // If there are many chunks, each is one thread's work; otherwise the threads share each.
    parallel_for(chunks, chunks >= 4 * num_threads() ? 1 : chunks, [&](std::int64_t first, std::int64_t end) {
        Gemm one = g;
        for (std::int64_t begin = first * rows; begin < std::min(end * rows, x.count()); begin += rows) {
            one.m = std::min(rows, x.count() - begin);
            multiply_chunk(p, x, group, begin, one);
        }
    });
}

// result = beta * result + sums, for a result that is not the sums' own memory.
void finish_gradient(const WindowGradient& p, const float* sums) {
    Gemm g{.m = p.outputs, .n = p.windows.steps(), .beta = float(p.beta)};
    g.c = p.result, g.c_type = p.result_type, g.ldc = g.n;
    finish_sums(gemm_kernels(active_isa()), g, sums, g.n);
}

// Calls add(sums, accumulate) with memory for the float32 sums of a gradient: the result itself, or a buffer
// from which the result is then computed.
template <class F> void with_sums(const WindowGradient& p, const F& add) {
    if (p.result_type == float32 && (p.beta == 0 || p.beta == 1))
        return add(reinterpret_cast<float*>(p.result), p.beta != 0);
    Buffer buffer;
    float* const sums = buffer.get<float>(p.outputs * p.windows.steps());
    add(sums, false);
    finish_gradient(p, sums);
}

// Whether gemm() has instructions better than vectors for a product.
bool has_matrix_units(const Gemm& g) {
    if (g.a_type != g.b_type) return false;
    const GemmKernels& kernels = chosen_gemm_kernels(g);
    if (kernels.depth == 2 && g.a_type == bfloat16) return true;
    return kernels.tiles && worth_packing(g) &&
           tile_product(*kernels.tiles, g.a_type, float32_matmul_precision());
}

// Kernels that multiply windows without im2col, or null if gemm() is better: on tiles, and for pairs of
// channels whose number is odd.
const WindowKernels* in_place_kernels(const WindowProduct& p) {
    if (p.result.type == float64) return nullptr;
    Gemm g{.m = p.windows.count(), .n = p.columns(), .k = p.windows.steps(), .trans_b = !p.transposed};
    g.a_type = p.windows.type, g.b_type = p.weight.type;
    if (g.k == 0 || !worth_packing(g)) return nullptr;
    if (!has_matrix_units(g)) return &window_kernels();
    if (chosen_gemm_kernels(g).tiles || windows_avx512_bf16.mr == 0) return nullptr;
    if (p.windows.channels % 2 == 0) return &windows_avx512_bf16;
    // With few channels, such as an image's three, copying the windows takes longer than half the additions
    // save.
    return p.windows.channels < 8 ? &window_kernels() : nullptr;
}

// Tiles that multiply windows without im2col, or null. They pay for fewer columns than in gemm(), which would
// need the copies of im2col for those.
const TileProduct* in_place_tiles(const WindowProduct& p) {
    if (p.windows.type != bfloat16) return nullptr;
    Gemm g{.m = p.windows.count(),
           .n = std::max(p.columns(), tile_columns),
           .k = p.windows.steps(),
           .trans_b = !p.transposed};
    g.a_type = p.windows.type, g.b_type = p.weight.type;
    if (!worth_packing(g)) return nullptr;
    const TileKernels* const tiles = chosen_gemm_kernels(g).tiles;
    return tiles && suits_tiles(p, tiles->bf16) ? &tiles->bf16 : nullptr;
}

// Number of parts into which the windows of a gradient are split, so that threads have work if the gradient
// is small. The parts' sums are then added in order. The number depends on the sizes only.
std::int64_t gradient_parts(const WindowGradient& p) {
    if (p.result_type == float64) return 1;
    const std::int64_t chunks = parts_of(p.windows.count(), chunk_rows(p.windows));
    const std::int64_t one = std::max<std::int64_t>(1, p.outputs * p.windows.steps());
    return std::clamp<std::int64_t>(std::min(chunks / 2, part_floats / one), 1, most_parts);
}

// The sums of windows [begin, end) times their gradients, of one group; `g` holds the result's address.
void add_windows(const WindowGradient& p, std::int64_t group, std::int64_t begin, std::int64_t end, Gemm g) {
    const Windows x = group_of(p.windows, group);
    g.m = p.group_outputs(), g.n = x.steps(), g.trans_a = true;
    g.a_type = p.gradient_type, g.lda = p.outputs;
    g.b_type = x.type;
    g.c = static_cast<char*>(g.c) + group * g.m * g.n * std::int64_t(size_of(g.c_type)), g.ldc = g.n;
    const auto size = std::int64_t(size_of(p.gradient_type));
    const std::int64_t most = in_place(x) ? std::max<std::int64_t>(end - begin, 1) : chunk_rows(x);
    do {
        g.k = std::min(most, end - begin);
        const WindowMatrix b = matrix_of(x, begin, g.k);
        g.a = p.gradient ? p.gradient + (begin * p.outputs + group * g.m) * size : nullptr;
        g.b = b.data, g.ldb = b.ld;
        gemm(g);
        g.beta = 1;
        begin += g.k;
    } while (begin < end);
}

// The product of one group.
Gemm product_of(const WindowGradient& p) {
    Gemm g{.m = p.group_outputs(), .n = p.windows.steps(), .k = p.windows.count(), .trans_a = true};
    g.a_type = p.gradient_type, g.b_type = p.windows.type;
    return g;
}

// Multiplies groups of few channels on tiles, if that is possible; returns whether it did.
bool multiplied_merged(const WindowProduct& p) {
    if (p.groups == 1) return false;
    MergedProduct merged(p);
    const TileProduct* const tiles = merged.merges() ? in_place_tiles(merged.product) : nullptr;
    if (!tiles || !merged.exact()) return false;
    merged.set_weight();
    multiply_windows_on_tiles(merged.product, *tiles);
    return true;
}

// The same for their gradient, which float32 computes on vectors.
bool added_merged(const WindowGradient& p) {
    if (p.groups == 1 || p.result_type == float64) return false;
    WindowGradient merged = merged_gradient(p);
    const Gemm g = product_of(merged);
    if (merged.groups == p.groups || g.k == 0) return false;
    const bool vectors = p.windows.type == float32;
    const TileKernels* const tiles = chosen_gemm_kernels(g).tiles;
    if (!vectors && (!tiles || !suits_tiles(merged, tiles->bf16))) return false;
    Buffer buffer;
    float* const all = buffer.get<float>(merged.outputs * merged.windows.steps());
    merged.result = reinterpret_cast<char*>(all), merged.result_type = float32, merged.beta = 0;
    vectors ? add_window_gradient_by_vectors(merged, window_kernels())
            : add_window_gradient_on_tiles(merged, tiles->bf16, all, false);
    float* const sums = scratch.result.get<float>(p.outputs * p.windows.steps());
    split_merged(p, merged, all, sums);
    finish_gradient(p, sums);
    return true;
}

// Computes the gradient without gemm() if another method is best for it; returns whether it did.
bool added_without_gemm(const WindowGradient& p) {
    if (p.result_type == float64) return false;
    const Gemm g = product_of(p);
    // For few outputs, packing windows is faster than copying them for gemm(), except in short pieces of 16
    // bit.
    const bool few_outputs = p.windows.taps.size() > 1 && g.m >= least_outputs && g.n > least_outputs &&
                             (p.windows.type == float32 || p.windows.channels >= tile_columns);
    if (g.k == 0 || !(worth_packing(g) || few_outputs)) return false;
    if (!has_matrix_units(g)) {
        add_window_gradient_by_vectors(p, window_kernels());
        return true;
    }
    if (const TileKernels* const tiles = chosen_gemm_kernels(g).tiles) {
        if (!suits_tiles(p, tiles->bf16)) return false;
        with_sums(p, [&](float* sums, bool add) { add_window_gradient_on_tiles(p, tiles->bf16, sums, add); });
        return true;
    }
    if (!pairs_images(p)) return false;
    with_sums(p, [&](float* sums, bool add) { add_window_gradient_by_pairs(p, sums, add); });
    return true;
}

}  // namespace

void multiply_windows(const WindowProduct& p) {
    if (p.windows.count() == 0) return;
    if (multiplied_merged(p)) return;
    if (has_small_groups(p)) return multiply_small_groups(p);
    if (const WindowKernels* const kernels = in_place_kernels(p))
        return multiply_windows_in_place(p, *kernels);
    if (const TileProduct* const tiles = in_place_tiles(p)) return multiply_windows_on_tiles(p, *tiles);
    for (std::int64_t group = 0; group < p.groups; ++group) multiply_group(p, group);
}

void add_window_gradient(const WindowGradient& p) {
    if (added_merged(p)) return;
    if (has_small_groups(p)) return add_small_group_gradient(p);
    if (added_without_gemm(p)) return;
    const std::int64_t parts = gradient_parts(p), count = p.outputs * p.windows.steps();
    const bool own_sums = parts == 1 && (p.result_type == float32 || p.result_type == float64);
    Buffer buffer;
    float* const sums = own_sums ? nullptr : buffer.get<float>(parts * count);
    const std::int64_t all = p.windows.count(), rows = chunk_rows(p.windows), work = parts * p.groups;
    const auto begin_of = [&](std::int64_t part) {
        return std::min(all, part * parts_of(all, rows) / parts * rows);
    };
    parallel_for(work, parts == 1 ? work : 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t part = u / p.groups;
            Gemm g;
            g.c = own_sums ? static_cast<void*>(p.result) : sums + part * count;
            g.c_type = own_sums ? p.result_type : float32;
            g.beta = own_sums ? float(p.beta) : 0;
            add_windows(p, u % p.groups, begin_of(part), begin_of(part + 1), g);
        }
    });
    if (own_sums) return;
    for (std::int64_t part = 1; part < parts; ++part)
        for (std::int64_t i = 0; i < count; ++i) sums[i] += sums[part * count + i];
    finish_gradient(p, sums);
}

}  // namespace mezzo::cpu
