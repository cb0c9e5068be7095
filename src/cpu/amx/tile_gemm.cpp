// Matrix products on tiles. A thread packs up to 1536 columns of op(B), which stay in its L2 cache, and
// multiplies rows of op(A) with them. An op(A) of bfloat16 that is contiguous along k is read unpacked if
// that suits the L1 cache, else packed 32 rows at a time into that cache; any other op(A) is packed once for
// all threads. Sums have the same terms in the same order for any number of threads, unless an element has no
// planes (TileProduct).
#include "cpu/amx/tile_gemm.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "core/round_up.h"
#include "cpu/buffer.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t most_columns = 1536;      // of op(B) packed at once; a third of it if k is long
constexpr std::int64_t l1_bytes = 32 << 10;      // for op(A)
constexpr std::int64_t l2_bytes = 1152 << 10;    // for op(B)
constexpr std::int64_t run_bytes = 192 << 10;    // of a panel that is packed for few rows of op(A)
constexpr std::int64_t a_bytes = 8 << 20;        // for an op(A) that is packed for all threads: fits L3
constexpr std::int64_t most_rows = 2048;         // whose sums are saved between ranges of k
constexpr std::int64_t longest_k = 4096;         // added up in one chain if k is more than twice as long
constexpr std::int64_t strip_floats = 1 << 21;   // of sums that are saved between two chains
constexpr std::int64_t parallel_work = 1 << 23;  // multiply-adds worth waking a thread for

// Buffers of each thread. The thread that called gemm() uses strip, each thread that computes the others. The
// calling thread's panels hold the packed op(A) and behind it its part of op(B): one buffer for both, because
// products that need much memory for one need little for the other.
thread_local struct { Buffer panels, strip, sums, rows; } scratch;

template <class P> P* element(P* base, Dtype type, std::int64_t index) {
    using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
    return base ? static_cast<Byte*>(base) + index * std::int64_t(size_of(type)) : base;
}

// The part of g with m rows from i on, n columns from j on and k steps from p on.
Gemm part_of(const Gemm& g, std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t n, std::int64_t p,
             std::int64_t k) {
    Gemm part = g;
    part.m = m, part.n = n, part.k = k;
    part.a = element(g.a, g.a_type, g.trans_a ? p * g.lda + i : i * g.lda + p);
    part.b = element(g.b, g.b_type, g.trans_b ? j * g.ldb + p : p * g.ldb + j);
    part.c = element(g.c, g.c_type, i * g.ldc + j);
    part.pre_activation = element(g.pre_activation, g.c_type, i * g.ldc + j);
    part.added = element(g.added, g.c_type, i * g.ldc + j);
    part.bias = element(g.bias, g.bias_type, j);
    part.b_packed = nullptr;
    if (g.b_tiles) part.b_tiles += j / panel_lines * g.b_tile_panel + p / tile_steps * 2 * tile_bytes;
    return part;
}

// Whether tiles of op(A) can be read unpacked: rows begin with a cache line, and no set of the L1 cache (64
// sets of 12 lines) gets so many lines of 32 rows that they evict each other.
bool reads_well(const Gemm& g, std::int64_t count) {
    constexpr std::int64_t line = 64, sets = 64, most = 8;
    const std::int64_t stride = 2 * g.lda;
    if (g.trans_a || stride % line != 0 || reinterpret_cast<std::uintptr_t>(g.a) % line != 0) return false;
    int lines[sets] = {};
    for (std::int64_t row = 0; row < panel_lines; ++row)
        for (std::int64_t s = 0; s < count; ++s)
            if (++lines[(row * stride / line + s) % sets] > most) return false;
    return true;
}

// A product whose packed op(A) fits the scratch.
class Product {
public:
    Product(const TileProduct& tile_product, const Gemm& gemm, const GemmKernels& vector_kernels)
        : product(tile_product), g(gemm), kernels(vector_kernels) {}

    void run() {
        const bool worth_threads = g.m * g.n * g.k >= parallel_work;
        const std::int64_t threads = worth_threads ? num_threads() : 1;
        groups = parts_of(
            panels, std::clamp(l2_bytes / panel, most_columns / panel_lines / 3, most_columns / panel_lines));
        if (threads > 1)  // the same number for each thread, of 128 columns at least; then parts of the rows
            groups = std::clamp(parts_of(std::max(groups, threads), threads) * threads, groups,
                                std::max(groups, panels / 4));
        if (few_rows) groups = panels;
        part_rows = parts_of(parts_of(g.m, parts_of(threads, groups)), panel_lines) * panel_lines;
        range = parts_of(tiles, parts_of(parts_of(panels, groups) * panel, few_rows ? run_bytes : l2_bytes));
        a_range = parts_of(range, parts_of(range * step_bytes, l1_bytes));
        in_place = in_passing && reads_well(g, a_range);
        packed_a_bytes = in_passing ? 0 : parts_of(g.m, panel_lines) * panel;
        packed_b_bytes = g.b_tiles ? 0 : parts_of(panels, groups) * range * step_bytes;
        char* const room = caller.panels.get<char>(packed_a_bytes + packed_b_bytes);
        packed_a = in_passing ? nullptr : room;
        packed_b = room + packed_a_bytes;
        if (!in_passing && !pack_a()) return gemm_without_tiles(g, kernels);
        const std::int64_t units = groups * parts_of(g.m, part_rows);
        parallel_for(units, worth_threads ? 1 : units, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t u = begin; u < end; ++u) {
                const std::int64_t i = u / groups * part_rows, x = u % groups, j = x * panels / groups;
                work({i, std::min(part_rows, g.m - i), j * panel_lines,
                      std::min((x + 1) * panels / groups * panel_lines, g.n) - j * panel_lines});
            }
        });
    }

private:
    struct OutputBlock {
        std::int64_t i, rows, j, columns;
    };

    bool pack_a() {
        std::atomic<bool> finite{true};
        const std::int64_t unit = g.trans_a ? 2 : 64;  // tiles of k, or rows: op(A) is read in memory order
        const std::int64_t units = parts_of(g.trans_a ? tiles : g.m, unit);
        parallel_for(
            units, g.m * g.n * g.k < parallel_work ? units : 1, [&](std::int64_t begin, std::int64_t end) {
                TilePacking p{{g.a, g.a_type, g.lda, !g.trans_a}, g.m, g.k, 0, tiles, packed_a, panel};
                if (g.trans_a) {
                    p.first = begin * unit;
                    p.end = std::min(end * unit, tiles);
                } else {
                    p.x.data = element(g.a, g.a_type, begin * unit * g.lda);
                    p.width = std::min(end * unit, g.m) - begin * unit;
                    p.to = packed_a + begin * unit / panel_lines * panel;
                }
                if (!product.pack_a(p)) finite.store(false, std::memory_order_relaxed);
            });
        return finite;
    }

    bool pack_b(const OutputBlock& p, std::int64_t first, std::int64_t count, char* to) const {
        const std::int64_t k = first * tile_steps;
        const Operand b{element(g.b, g.b_type, g.trans_b ? p.j * g.ldb + k : k * g.ldb + p.j), g.b_type,
                        g.ldb, g.trans_b};
        return product.pack_b(
            {b, p.columns, std::min(g.k - k, count * tile_steps), 0, count, to, count * step_bytes});
    }

    void work(const OutputBlock& p) const {
        const std::int64_t across = parts_of(p.columns, panel_lines);
        const std::int64_t block = panel_lines * panel_lines;
        const bool all_rows = range < tiles;
        auto& own = scratch;
        char* const b = &own == &caller ? packed_b : own.panels.get<char>(packed_b_bytes);
        char* const a = in_passing ? own.rows.get<char>(a_range * step_bytes) : nullptr;
        float* const sums =
            own.sums.get<float>(across * block * (all_rows ? parts_of(p.rows, panel_lines) : 1));
        for (std::int64_t first = 0; first < tiles; first += range) {
            const std::int64_t count = std::min(range, tiles - first);
            if (!g.b_tiles && !pack_b(p, first, count, b))
                return gemm_without_tiles(part_of(g, p.i, p.rows, p.j, p.columns, 0, g.k), kernels);
            const char* const packed =
                g.b_tiles ? g.b_tiles + p.j / panel_lines * g.b_tile_panel + first * step_bytes : b;
            product.multiply({g, static_cast<const float*>(g.bias), p.i, p.i + p.rows, p.j, p.columns, first,
                              count, packed_a, panel, in_place, a, a_range, packed,
                              g.b_tiles ? g.b_tile_panel : count * step_bytes, sums, all_rows});
        }
    }

    const TileProduct& product;
    const Gemm& g;
    const GemmKernels& kernels;
    const std::int64_t step_bytes = product.planes_a * 2 * tile_bytes;  // of a panel, for a tile of k
    const std::int64_t tiles = parts_of(g.k, tile_steps), panel = tiles * step_bytes,
                       panels = parts_of(g.n, panel_lines);
    // Whether C has so few rows that the time is that of packing op(B) from long lines. It takes less if one
    // panel is packed at a time, in long runs.
    const bool few_rows = g.m <= 128 && g.k >= 1024 && g.trans_b && !g.b_tiles;
    const bool in_passing = product.planes_a == 1 && !g.trans_a && !few_rows;
    decltype(scratch)& caller = scratch;
    char *packed_a = nullptr, *packed_b = nullptr;        // the calling thread's
    std::int64_t packed_a_bytes = 0, packed_b_bytes = 0;  // of one part
    std::int64_t groups = 0, part_rows = 0;               // groups of columns; rows of a part
    std::int64_t range = 0, a_range = 0;                  // tiles of k at once: of op(B), and of op(A)
    bool in_place = false;
};

// Adds up all of k in one chain, for as many rows at a time as the buffer of op(A) holds.
void by_rows(const TileProduct& product, const Gemm& g, const GemmKernels& kernels) {
    const std::int64_t panel = parts_of(g.k, tile_steps) * product.planes_a * 2 * tile_bytes;
    const std::int64_t most = std::min(most_rows, std::max<std::int64_t>(1, a_bytes / panel) * panel_lines);
    const std::int64_t strip = parts_of(parts_of(g.m, parts_of(g.m, most)), panel_lines) * panel_lines;
    for (std::int64_t i = 0; i < g.m; i += strip) {
        const Gemm part = part_of(g, i, std::min(strip, g.m - i), 0, g.n, 0, g.k);
        Product(product, part, kernels).run();
    }
}

// Adds one range of k after the other to C, the first with g.beta.
void by_ranges(const TileProduct& product, const Gemm& g, const GemmKernels& kernels) {
    const std::int64_t range = parts_of(parts_of(g.k, parts_of(g.k, longest_k)), tile_steps) * tile_steps;
    for (std::int64_t p = 0; p < g.k; p += range) {
        Gemm part = part_of(g, 0, g.m, 0, g.n, p, std::min(range, g.k - p));
        if (p > 0) part.beta = 1;
        by_rows(product, part, kernels);
    }
}

// For a long k and a C that is not a plain sum in float32: the sums of a strip of C stay in float32 until all
// of k is added up, then the epilogue computes C from them.
void by_strips(const TileProduct& product, const Gemm& g, const GemmKernels& kernels) {
    const std::int64_t most_n = std::min(g.n, most_rows), most_m = std::min(g.m, strip_floats / most_rows);
    const std::int64_t ldt = round_up(most_n, panel_lines);
    float* const t = scratch.strip.get<float>(most_m * ldt);
    for (std::int64_t j = 0; j < g.n; j += most_n)
        for (std::int64_t i = 0; i < g.m; i += most_m) {
            const Gemm part = part_of(g, i, std::min(most_m, g.m - i), j, std::min(most_n, g.n - j), 0, g.k);
            Gemm sums = part;
            sums.c = t, sums.c_type = float32, sums.ldc = ldt;
            sums.bias = nullptr, sums.pre_activation = nullptr, sums.activation = Activation::none;
            sums.added = nullptr, sums.alpha = 1, sums.beta = 0;
            by_ranges(product, sums, kernels);
            finish_sums(kernels, part, t, ldt);
        }
}

}  // namespace

void gemm_on_tiles(const TileProduct& product, const Gemm& g, const GemmKernels& kernels) {
    const bool plain_sum = g.c_type == float32 && g.alpha == 1 && !g.bias && !g.pre_activation && !g.added &&
                           g.activation == Activation::none;
    if (g.k <= 2 * longest_k) return by_rows(product, g, kernels);
    plain_sum ? by_ranges(product, g, kernels) : by_strips(product, g, kernels);
}

}  // namespace mezzo::cpu
