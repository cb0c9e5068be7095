// Blocking and threads of one matrix product. The arithmetic is in micro_kernel.h.
//
//   C is cut into strips, the ranges of k into slots (one or two k-steps, pack.h):
//     for each strip of C                      m x n, so that its packed panels fit in L3
//       for each range of k                    all of k, if the panels can hold it
//         pack op(A), op(B) into panels        by all threads
//         for each cache block of the strip    mc x nc, handed out to threads dynamically
//           tile(): up to kc slots at a time   mr x nr sums in registers
//
// The panels of op(A) lie in a buffer that all threads read, unless the kernels can read A where it is. So do
// those of op(B), unless C has few rows: then the kernels read a small B where it is, and of a large one each
// thread packs a few columns at a time for itself. While a cache block is computed, the memory of the next
// one is prefetched. The sums of a block stay in a scratch tile until its epilogue, or in C if they need
// none. If k takes several ranges, the sums of a C that is not float32 are saved in a float32 copy of the
// strip, so that C is rounded once in any case.
#include "cpu/gemm/five_loops.h"

#include <algorithm>

#include "cpu/amx/tile_gemm.h"
#include "cpu/buffer.h"
#include "cpu/elementwise/convert.h"
#include "cpu/elementwise/loops.h"
#include "cpu/gemm/operand.h"
#include "cpu/gemm/prefetch.h"
#include "cpu/gemm/range_groups.h"
#include "cpu/gemm/skinny.h"
#include "cpu/isa/isa_tables.h"
#include "cpu/parallel.h"
#include "mezzo/matmul_precision.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t panel_floats = std::int64_t(1) << 21;  // limit of a packed operand: 8 MiB, in L3
constexpr std::int64_t longest_k = 2048, short_k = 1024;      // packed at once
constexpr std::int64_t own_rows = 2048;  // most rows of C for which threads pack their own columns of op(B)
constexpr std::int64_t skinny_m = 8, skinny_n = 4;  // up to these packing the other operand does not pay

// Buffers of each thread. a, b, bias, strip, totals and parts belong to the thread that called gemm(); tile
// and own_b to each thread that computes.
struct Scratch {
    Buffer a, b, bias, strip, totals, parts, tile, own_b;
};

Scratch& scratch() {
    thread_local Scratch s;
    return s;
}

// Number of columns of op(B), `slots` long, that a thread packs for itself at a time. op(A) is read once for
// each such block: wide ones are better as long as they leave room in the L2 cache.
std::int64_t own_columns(const GemmKernels& kernels, std::int64_t slots) {
    constexpr std::int64_t most_floats = std::int64_t(1) << 17;
    const std::int64_t few = kernels.nr * (64 / kernels.nr + 1), many = kernels.nr * 3;
    return many > few && many * slots <= most_floats ? many : few;
}

// Number of rows of C in a block of such columns: few enough that the L2 cache holds op(A)'s next ones, too.
std::int64_t own_rows_at_once(const GemmKernels& kernels, std::int64_t slots) {
    constexpr std::int64_t floats = std::int64_t(1) << 15;
    return std::clamp<std::int64_t>(floats / slots / kernels.mr * kernels.mr, 2 * kernels.mr, kernels.mc);
}

// Whether op(A) is rows of float32, which kernels can read where they are, except for rows that fill no whole
// panel. All numbers of columns from 48 to 3072 that were tried took at most 2 % longer than with packed
// panels, and 48 columns were 1.5 times as fast, because so few do not pay for packing.
bool rows_of_float32(const Gemm& g) { return g.a_type == float32 && !g.trans_a; }

// Whether op(B) is rows of float32 that kernels read where they are: it is small enough for the caches, and C
// has so few rows that packing would take a noticeable part of the time.
bool reads_columns_of_b(const GemmKernels& kernels, const Gemm& g) {
    constexpr std::int64_t largest = std::int64_t(1) << 20;
    return g.m <= (g.trans_a ? 64 : 128) && g.n * g.k <= largest && g.b_type == float32 && !g.trans_b &&
           !g.b_packed && kernels.depth == 1 && g.n % kernels.lanes == 0;
}

// A strip of C, one range of k, and the buffers of their packed panels.
struct Strip {
    std::int64_t i, j, p;  // origin
    std::int64_t m, n, k;  // extent
    std::int64_t slots;    // of k in the packed panels
    float *a, *b;          // packed panels; b is null if every block of columns packs its own, or none does
    float* sums;           // [m, ld_sums] float32, or null if the range is all of k
    std::int64_t ld_sums;
    bool first, last;       // of the ranges of k
    bool keep_a;            // a holds these panels already
    std::int64_t in_place;  // rows whose op(A) is read where it is; the panels in a are those of the rest
};

void pack_strip(const GemmKernels& kernels, const Gemm& g, const Strip& s, std::int64_t work) {
    const std::int64_t unit_a = kernels.mr * 8, unit_b = kernels.nr * 4;
    const std::int64_t rows_a = s.m - s.in_place, count_a = s.keep_a ? 0 : (rows_a + unit_a - 1) / unit_a,
                       count_b = s.b && !g.b_packed ? (s.n + unit_b - 1) / unit_b : 0;
    const std::int64_t count = count_a + count_b;
    parallel_for(count, work < parallel_work ? count : 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) {
            if (u < count_a) {
                const std::int64_t i = u * unit_a;
                kernels.pack_a(rows_of_a(g, s.i + s.in_place + i, s.p), std::min(unit_a, rows_a - i), s.k,
                               s.a + i * s.slots);
                if (g.a_sums && s.j == 0)
                    kernels.panel_sums(s.a + i * s.slots, s.slots, std::min(unit_a, rows_a - i),
                                       g.a_sums + s.i + i);
            } else {
                const std::int64_t j = (u - count_a) * unit_b;
                kernels.pack_b(columns_of_b(g, s.p, s.j + j), std::min(unit_b, s.n - j), s.k,
                               s.b + j * s.slots);
            }
        }
    });
}

// Whether sums can be stored to C as they are, in whole vectors and without an epilogue.
bool stores_sums(const GemmKernels& kernels, const Gemm& g, std::int64_t columns) {
    return g.c_type == float32 && g.alpha == 1 && (g.beta == 0 || g.beta == 1) && !g.bias &&
           !g.pre_activation && !g.added && g.activation == Activation::none && columns % kernels.lanes == 0;
}

// Whether the time is that of storing C, which the caches hold in part. Blocks are a few whole rows then, so
// that C is written in the order in which it lies in memory, and nothing is prefetched.
bool stores_whole_rows(const GemmKernels& kernels, const Gemm& g) {
    constexpr std::int64_t least = std::int64_t(1) << 18, most = std::int64_t(1) << 22, most_k = 64;
    return g.k <= most_k && g.n > kernels.nc && g.m * g.n >= least && g.m * g.n <= most &&
           stores_sums(kernels, g, g.n);
}

// Number of the remaining slots to multiply at once. The last two ranges share their slots evenly, so that
// the last one is not short.
std::int64_t range(const GemmKernels& kernels, std::int64_t left) {
    return left > 2 * kernels.kc ? kernels.kc : left > kernels.kc ? (left + 1) / 2 : left;
}

// A cache block of a strip.
struct Area {
    std::int64_t i, j, rows, columns;
};

// Packed panels.
TileColumnsOfB packed(const GemmKernels& kernels, const Strip& s, const float* panels) {
    return {panels, kernels.nr, kernels.nr * s.slots};
}

// Computes one cache block. `b` is op(B) from the block's first column on.
void block(const GemmKernels& kernels, const Gemm& g, const float* bias, const Strip& s,
           const TileColumnsOfB& b, const Area& at, Prefetch& ahead) {
    const auto [i, j, rows, columns] = at;
    const bool direct = !s.sums && stores_sums(kernels, g, columns);
    float* t = direct   ? static_cast<float*>(g.c) + (s.i + i) * g.ldc + s.j + j
               : s.sums ? s.sums + i * s.ld_sums + j
                        : scratch().tile.get<float>(round_up(rows, kernels.mr) * kernels.nc);
    const std::int64_t ldt = direct ? g.ldc : s.sums ? s.ld_sums : kernels.nc;
    const bool add = !s.first || (direct && g.beta != 0);
    const std::int64_t whole = std::clamp<std::int64_t>(s.in_place - i, 0, rows);
    // Few columns are bound by memory: the processor prefetches better, but for short rows of op(A).
    const bool short_rows = s.slots >= 64 && s.slots <= 128 && g.m * g.k > std::int64_t(1) << 20;
    if (columns < kernels.nr && !short_rows) ahead.count = 0;
    set_pace(ahead,
             (rows + kernels.mr - 1) / kernels.mr * ((columns + kernels.nr - 1) / kernels.nr) * s.slots);
    std::int64_t p = 0;
    do {
        const std::int64_t k = range(kernels, s.slots - p);
        const TileColumnsOfB from{b.data + p * b.step, b.step, b.panel};
        const bool more = p != 0 || add;
        if (whole > 0)
            kernels.tile_in_place(static_cast<const float*>(rows_of_a(g, s.i + i, s.p + p).data), g.lda, from,
                                  k, whole, columns, t, ldt, more, ahead);
        if (whole < rows)
            kernels.tile(s.a + (i + whole - s.in_place) * s.slots + p * kernels.mr, s.slots, from, k,
                         rows - whole, columns, t + whole * ldt, ldt, more, ahead);
        p += k;
    } while (p < s.slots);
    if (s.last && !direct) finish_block(kernels, g, bias, s.i + i, s.j + j, rows, columns, t, ldt);
}

// Queues prefetches for `next`, the block after this one: its rows of op(A) if they change; and if it writes
// C, its elements of Gemm::saved, and those of C and pre_activation unless streaming stores write C.
void add_next(Prefetch& ahead, const GemmKernels& kernels, const Gemm& g, const Strip& s, const Area& next,
              bool new_rows) {
    if (new_rows && next.i < s.in_place)
        add(ahead, region_of(rows_of_a(g, s.i + next.i, s.p), std::min(next.rows, s.in_place - next.i), s.k));
    else if (new_rows)
        add(ahead, region_of(s.a + (next.i - s.in_place) * s.slots, 0, 1,
                             round_up(next.rows, kernels.mr) * s.slots * std::int64_t(sizeof(float))));
    if (s.sums ? !s.last : !s.first) return;  // C is not written, or has been before
    const auto size = std::int64_t(size_of(g.c_type));
    const auto add_block = [&](const void* of) {
        if (of)
            add(ahead, region_of(element(of, g.c_type, (s.i + next.i) * g.ldc + s.j + next.j), g.ldc * size,
                                 next.rows, next.columns * size));
    };
    add_block(g.saved);
    if (!stores_sums(kernels, g, next.columns) && streams(kernels, g)) return;
    add_block(g.c);
    add_block(g.pre_activation);
}

// Computes a strip whose op(B) is packed or read where it is: blocks of rows and columns in any order.
void compute_strip(const GemmKernels& kernels, const Gemm& g, const float* bias, const Strip& s,
                   std::int64_t work) {
    const bool whole_rows = stores_whole_rows(kernels, g);
    std::int64_t mc = whole_rows ? kernels.mr : kernels.mc,
                 nc = whole_rows ? round_up(s.n, kernels.nr) : kernels.nc;
    const auto blocks = [&] { return (s.m + mc - 1) / mc * ((s.n + nc - 1) / nc); };
    if (work >= parallel_work && !whole_rows) {
        const std::int64_t wanted = 3 * num_threads();
        while (num_threads() > 1 && blocks() < wanted && (mc > 4 * kernels.mr || nc > 2 * kernels.nr)) {
            if (mc > 4 * kernels.mr) mc = round_up(mc / 2, kernels.mr);
            if (blocks() < wanted && nc > 2 * kernels.nr) nc = round_up(nc / 2, kernels.nr);
        }
    }
    const std::int64_t across = (s.n + nc - 1) / nc;
    const auto area = [&](std::int64_t u) {
        const std::int64_t i = u / across * mc, j = u % across * nc;
        return Area{i, j, std::min(mc, s.m - i), std::min(nc, s.n - j)};
    };
    // One part of a C in whole rows per thread, whose cache may hold it from the last time.
    const std::int64_t parts = work < parallel_work ? 1 : whole_rows ? num_threads() : blocks();
    parallel_for(blocks(), (blocks() + parts - 1) / parts, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) {
            const Area at = area(u);
            Prefetch ahead;
            if (u + 1 < blocks() && !whole_rows)
                add_next(ahead, kernels, g, s, area(u + 1), area(u + 1).i != at.i);
            if (s.b) {
                block(kernels, g, bias, s, packed(kernels, s, s.b + at.j * s.slots), at, ahead);
                continue;
            }
            const bool last = u + 1 == blocks();
            const Area next = area(last ? 0 : u + 1);
            const std::int64_t q = s.p + s.k, left = std::min(s.k, g.k - q), p = last ? q : s.p;
            if (s.in_place == 0 && left > 0)
                add(ahead, part_of(region_of(rows_of_a(g, s.i, q), s.m, left), u, blocks()));
            add(ahead, region_of(columns_of_b(g, p, s.j + next.j), next.columns, std::min(s.k, g.k - p)));
            const Operand b = columns_of_b(g, s.p, s.j + at.j);
            block(kernels, g, bias, s, {static_cast<const float*>(b.data), b.ld, kernels.nr}, at, ahead);
        }
    });
}

// A strip in blocks of columns. A block packs its panels just before it uses them for all rows, so that they
// are still in the L2 cache. All threads get the same number of blocks of about the same width: a block spans
// all rows of C, so one more on one thread would cost noticeable time.
class ColumnBlocks {
public:
    ColumnBlocks(const GemmKernels& of, const Gemm& gemm, const float* bias_or_null, const Strip& strip)
        : kernels(of),
          g(gemm),
          bias(bias_or_null),
          s(strip),
          mc(own_rows_at_once(of, strip.slots)),
          widest(own_columns(of, strip.slots)) {
        const std::int64_t least = round_up((s.n + widest - 1) / widest, threads);
        count =
            threads > 1 ? std::max(least, round_up(std::min(4 * threads, s.n / kernels.nr), threads)) : least;
        for (std::int64_t fewer = std::max(least, 2 * threads); fewer < count; fewer += threads)
            if (panels_in(fewer) < panels_in(count)) count = fewer;
    }

    void run() const {
        parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
            float* const b = scratch().own_b.get<float>(round_up(widest, kernels.nr) * s.slots);
            for (std::int64_t u = begin; u < end; ++u) compute(u, u + 1 < end ? u + 1 : u + threads, b);
        });
    }

private:
    // Panels of all of so many blocks. A narrow panel takes about as long as a whole one.
    std::int64_t panels_in(std::int64_t blocks) const {
        const std::int64_t columns = round_up((s.n + blocks - 1) / blocks, kernels.lanes);
        return blocks * ((columns + kernels.nr - 1) / kernels.nr);
    }
    std::int64_t edge(std::int64_t u) const {
        const std::int64_t units = (s.n + kernels.lanes - 1) / kernels.lanes;
        return std::min(u * units / count * kernels.lanes, s.n);
    }
    std::int64_t width(std::int64_t u) const { return edge(u + 1) - edge(u); }
    Operand source(std::int64_t u, std::int64_t p) const { return columns_of_b(g, p, s.j + edge(u)); }

    // `next` is this thread's next block, if all threads are as fast.
    void compute(std::int64_t u, std::int64_t next, float* b) const {
        kernels.pack_b(source(u, s.p), width(u), s.k, b);
        const std::int64_t blocks = (s.m + mc - 1) / mc;
        const auto area = [&](std::int64_t i, std::int64_t of) {
            return Area{i * mc, edge(of), std::min<std::int64_t>(mc, s.m - i * mc), width(of)};
        };
        for (std::int64_t i = 0; i < blocks; ++i) {
            Prefetch ahead;
            if (i + 1 < blocks)
                add_next(ahead, kernels, g, s, area(i + 1, u), true);
            else if (next < count)
                add_next(ahead, kernels, g, s, area(0, next), blocks > 1);
            if (next < count) add(ahead, part_of(region_of(source(next, s.p), width(next), s.k), i, blocks));
            if (const std::int64_t p = s.p + s.k, k = std::min(s.k, g.k - p); k > 0) {
                if (next >= count)
                    add(ahead, part_of(region_of(source(u % threads, p), width(u % threads), k), i, blocks));
                if (s.in_place == 0)
                    add(ahead,
                        part_of(region_of(rows_of_a(g, s.i, p), s.m, k), u * blocks + i, count * blocks));
            }
            block(kernels, g, bias, s, packed(kernels, s, b), area(i, u), ahead);
        }
    }

    const GemmKernels& kernels;
    const Gemm& g;
    const float* bias;
    const Strip& s;
    const std::int64_t mc, widest, threads = num_threads();
    std::int64_t count = 0;
};

// Number of steps of k that are packed at once: few, which leaves room in the L2 cache for more columns,
// unless C would be read and written for more than 16 ranges, or a large one needs a float32 copy for its
// sums. If op(A) has to be packed and C is small, they are so few that the panels stay in the L2 cache next
// to C.
std::int64_t steps_at_once(const GemmKernels& kernels, const Gemm& g) {
    constexpr std::int64_t small_c = std::int64_t(1) << 18, floats = std::int64_t(1) << 16;
    const bool few = !g.b_packed && g.k <= 16 * short_k && kernels.depth == 1 &&
                     (stores_sums(kernels, g, g.n) || g.m * g.n <= panel_floats);
    const std::int64_t longest = few ? short_k : longest_k,
                       most = g.k <= longest + longest / 2 ? g.k : longest;
    if (reads_columns_of_b(kernels, g)) return std::min(most, std::max<std::int64_t>(floats / g.n, 128));
    if (rows_of_float32(g) || g.m * g.n > small_c) return most;
    const std::int64_t steps = std::clamp<std::int64_t>(floats / g.m, 128, 256) * kernels.depth;
    const std::int64_t ranges = (g.k + steps - 1) / steps;
    return std::min(most, round_up((g.k + ranges - 1) / ranges, kernels.depth));
}

void blocked(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    const std::int64_t ks = steps_at_once(kernels, g), ranges = (g.k + ks - 1) / ks;
    const std::int64_t slots = (ks + kernels.depth - 1) / kernels.depth;
    const auto strip = [&](std::int64_t extent, std::int64_t unit) {
        return std::min(round_up(extent, unit),
                        panel_floats / std::max<std::int64_t>(slots, 512) / unit * unit);
    };
    // One panel per thread is enough for two threads; more of them have not been measured.
    const std::int64_t wide = num_threads() * kernels.nr;
    const bool b_in_place = reads_columns_of_b(kernels, g);
    const bool own = !b_in_place && !g.b_packed && !stores_whole_rows(kernels, g) && g.m <= own_rows &&
                     g.n >= (num_threads() == 2 ? wide : 2 * wide);
    const std::int64_t ns = own || b_in_place || g.b_packed ? g.n : strip(g.n, kernels.nr);
    // Sums that can be C's elements need no separate memory, unless they are added up in groups.
    const bool own_sums = ranges > 1 && !(RangeGroups::length(ranges) == 1 && stores_sums(kernels, g, g.n));
    Scratch& buffers = scratch();
    const bool in_place = kernels.tile_in_place != nullptr && rows_of_float32(g);
    const std::int64_t ms = in_place && !own_sums ? round_up(g.m, kernels.mr) : strip(g.m, kernels.mr);
    Strip s{};
    s.a = buffers.a.get<float>((in_place ? kernels.mr : ms) * slots);
    s.b = own || b_in_place ? nullptr
          : g.b_packed      ? const_cast<float*>(g.b_packed)
                            : buffers.b.get<float>(ns * slots);
    if (own_sums) s.sums = buffers.strip.get<float>(ms * round_up(ns, kernels.nr));
    s.ld_sums = round_up(ns, kernels.nr);
    for (s.j = 0; s.j < g.n; s.j += ns) {
        s.n = std::min(ns, g.n - s.j);
        for (s.i = 0; s.i < g.m; s.i += ms) {
            s.m = std::min(ms, g.m - s.i);
            s.in_place = in_place ? s.m / kernels.mr * kernels.mr : 0;
            s.p = 0;
            RangeGroups groups(s.sums ? ranges : 1, s.sums ? round_up(s.m, kernels.mr) * s.ld_sums : 0,
                               buffers.totals);
            do {
                s.k = std::min(ks, g.k - s.p);
                s.slots = (s.k + kernels.depth - 1) / kernels.depth;
                s.first = s.p == 0 || groups.begins(s.p / ks, s.sums);
                s.last = s.p + s.k == g.k;
                s.keep_a = s.j > 0 && ms >= g.m && ks == g.k;
                const std::int64_t work = s.m * round_up(s.n, kernels.lanes) * s.k;
                pack_strip(kernels, g, s, work);
                own ? ColumnBlocks(kernels, g, bias, s).run() : compute_strip(kernels, g, bias, s, work);
                s.p += s.k;
            } while (s.p < g.k);
        }
    }
}

// The product of these operands on tiles, or null.
const TileProduct* product_on_tiles(const GemmKernels& kernels, const Gemm& g) {
    if (!kernels.tiles || g.a_type != g.b_type || !worth_packing(g)) return nullptr;
    return tile_product(*kernels.tiles, g.a_type, float32_matmul_precision());
}

// Multiplies on tiles if the kernels have them for the operands; returns whether it did. `bias` is float32 or
// null.
bool done_on_tiles(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    const TileProduct* const product = product_on_tiles(kernels, g);
    if (!product) return false;
    Gemm with_bias = g;
    with_bias.bias = bias;
    with_bias.bias_type = float32;
    gemm_on_tiles(*product, with_bias, kernels);
    return true;
}

// A product whose k is in one part. `bias` is float32 or null.
void multiply_part(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    if (done_on_tiles(kernels, g, bias)) return;
    if (g.m <= skinny_m)
        multiply_few_rows(kernels, g, bias);
    else if (g.n <= skinny_n)
        multiply_few_columns(kernels, g, bias);
    else
        blocked(kernels, g, bias);
}

// Number of parts of a long k that are multiplied on their own, so that threads have work although C is
// small. It depends on the sizes and types only.
std::int64_t parts_of_k(const GemmKernels& kernels, const Gemm& g) {
    constexpr std::int64_t largest_c = 1 << 16, small_c = 1 << 14;
    if (g.a_sums || g.m * g.n > largest_c || g.m * g.n * g.k < parallel_work) return 1;
    const bool tiles = product_on_tiles(kernels, g);
    // Steps for which one more part costs little; fewer if threads would pack op(A) for each other.
    const std::int64_t least = g.trans_a && !tiles && g.m * g.n <= small_c ? 512 : 2048;
    return std::clamp<std::int64_t>(g.k / least, 1, tiles ? 2 : 8);
}

void multiply_parts(const GemmKernels& kernels, const Gemm& g, const float* bias, std::int64_t count) {
    const std::int64_t ld = round_up(g.n, kernels.lanes), size = g.m * ld;
    float* const sums = scratch().parts.get<float>(count * size);
    // Threads take whole parts, unless C has more blocks for them than there are parts.
    constexpr std::int64_t block_of_c = 4096;
    const bool apart = count >= std::min<std::int64_t>(num_threads(), g.m * g.n / block_of_c);
    parallel_for(count, apart ? 1 : count, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t p = i * g.k / count;
            Gemm part{.m = g.m,
                      .n = g.n,
                      .k = (i + 1) * g.k / count - p,
                      .trans_a = g.trans_a,
                      .trans_b = g.trans_b};
            part.a = rows_of_a(g, 0, p).data, part.a_type = g.a_type, part.lda = g.lda;
            part.b = columns_of_b(g, p, 0).data, part.b_type = g.b_type, part.ldb = g.ldb;
            if (p % tile_steps == 0 && g.b_tiles)
                part.b_tiles = g.b_tiles + p / tile_steps * 2 * tile_bytes,
                part.b_tile_panel = g.b_tile_panel;
            part.c = sums + i * size, part.ldc = ld;
            multiply_part(kernels, part, nullptr);
        }
    });
    parallel_for(g.m, grain(g.m, 8 * count * size), [&](std::int64_t begin, std::int64_t end) {
        double* const totals = scratch().totals.get<double>(g.n);
        for (std::int64_t i = begin; i < end; ++i) {
            std::fill_n(totals, g.n, 0.0);
            active_loops().f32.add_to_double(totals, sums + i * ld, count, size, g.n);
            convert(totals, float64, sums + i * ld, float32, g.n);
        }
    });
    finish_block(kernels, g, bias, 0, 0, g.m, g.n, sums, ld);
}

}  // namespace

bool worth_packing(const Gemm& g) { return g.m > skinny_m && g.n > skinny_n; }

bool on_vectors(const GemmKernels& kernels, const Gemm& g) { return !product_on_tiles(kernels, g); }

bool packs_rows_of_a(const GemmKernels& kernels, const Gemm& g) {
    return on_vectors(kernels, g) && worth_packing(g) && !(kernels.tile_in_place && rows_of_float32(g));
}

std::int64_t packed_b(const GemmKernels& kernels, const Gemm& g) {
    const float any = 0;
    Gemm packed = g;
    packed.b_packed = &any;
    if (!on_vectors(kernels, g) || !worth_packing(g) || is_small(kernels, g) || g.b_panels ||
        steps_at_once(kernels, packed) < g.k || parts_of_k(kernels, g) > 1)
        return 0;
    return round_up(g.n, kernels.nr) * round_up(g.k, kernels.depth) / kernels.depth;
}

void pack_b(const GemmKernels& kernels, const Gemm& g, float* to) {
    const std::int64_t panels = (g.n + kernels.nr - 1) / kernels.nr;
    const std::int64_t panel = round_up(g.k, kernels.depth) / kernels.depth * kernels.nr;
    parallel_for(panels, grain(panels, 8 * g.n * g.k), [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t j = begin * kernels.nr;
        kernels.pack_b(columns_of_b(g, 0, j), std::min(end * kernels.nr, g.n) - j, g.k, to + begin * panel);
    });
}

void multiply_one(const GemmKernels& kernels, const Gemm& g) {
    if (is_small(kernels, g)) return kernels.small(g);
    const float* bias = static_cast<const float*>(g.bias);
    if (g.bias && g.bias_type != float32) {
        float* converted = scratch().bias.get<float>(g.n);
        convert(g.bias, g.bias_type, converted, float32, g.n);
        bias = converted;
    }
    if (g.k == 0) return multiply_no_steps(kernels, g, bias);
    if (g.b_panels) return multiply_panels(kernels, g, bias);
    if (const std::int64_t parts = parts_of_k(kernels, g); parts > 1)
        return multiply_parts(kernels, g, bias, parts);
    multiply_part(kernels, g, bias);
}

void finish_sums(const GemmKernels& kernels, const Gemm& g, const float* t, std::int64_t ldt) {
    finish_block(kernels, g, static_cast<const float*>(g.bias), 0, 0, g.m, g.n, t, ldt);
}

}  // namespace mezzo::cpu
