// One product: blocking, threads. The arithmetic is in gemm_kernel.h.
//
// A strip of C is computed from packed panels. Those of op(A) lie in a buffer that all threads read, unless the kernels
// can read A where it is. So do those of op(B), unless C has few rows: then each thread packs a few columns at a time
// for itself. Cache blocks of the strip are handed out dynamically, and a block's sums stay in a scratch tile until its
// epilogue. Only if k is longer than the packed panels are sums kept in a float32 copy of the strip, so that
// C is rounded once in any case.
#include "cpu/gemm_blocks.h"

#include <algorithm>

#include "cpu/buffer.h"
#include "cpu/convert.h"
#include "cpu/isa_tables.h"
#include "cpu/parallel.h"
#include "cpu/tile_gemm.h"
#include "mezzo/matmul_precision.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t panel_floats = std::int64_t(1) << 21;  // limit of a packed operand: 8 MiB, in L3
constexpr std::int64_t longest_k = 2048;                      // packed at once
constexpr std::int64_t own_rows = 2048;  // most rows of C for which threads pack their own columns of op(B)
constexpr std::int64_t skinny_m = 8, skinny_n = 4;  // up to these packing the other operand does not pay

// Per thread. a, b, rows, bias and strip belong to the thread that called gemm(); tile and own_b to each
// thread that computes.
struct Scratch {
    Buffer a, b, rows, bias, strip, totals, tile, own_b;
};

Scratch& scratch() {
    thread_local Scratch s;
    return s;
}

std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

const void* element(const void* base, Dtype type, std::int64_t index) {
    if (index == 0 || base == nullptr) return base;  // null: an operand without elements
    return static_cast<const char*>(base) + index * static_cast<std::int64_t>(size_of(type));
}
void* element(void* base, Dtype type, std::int64_t index) {
    return const_cast<void*>(element(static_cast<const void*>(base), type, index));
}

// op(A) from row i and step p of k on; op(B) from step p of k and column j on.
Operand rows_of_a(const Gemm& g, std::int64_t i, std::int64_t p) {
    const std::int64_t at = g.trans_a ? p * g.lda + i : i * g.lda + p;
    return {element(g.a, g.a_type, at), g.a_type, g.lda, !g.trans_a};
}
Operand columns_of_b(const Gemm& g, std::int64_t p, std::int64_t j) {
    const std::int64_t at = g.trans_b ? j * g.ldb + p : p * g.ldb + j;
    return {element(g.b, g.b_type, at), g.b_type, g.ldb, g.trans_b};
}

// Finishes rows x columns of C at (i, j) from the sums t. `bias` is float32 or null.
void finish(const GemmKernels& kernels, const Gemm& g, const float* bias, std::int64_t i, std::int64_t j,
            std::int64_t rows, std::int64_t columns, const float* t, std::int64_t ldt) {
    Epilogue e;
    e.t = t;
    e.ldt = ldt;
    e.rows = rows;
    e.columns = columns;
    e.c = element(g.c, g.c_type, i * g.ldc + j);
    e.pre_activation = g.pre_activation ? element(g.pre_activation, g.c_type, i * g.ldc + j) : nullptr;
    e.ldc = g.ldc;
    e.c_type = g.c_type;
    e.bias = bias ? bias + j : nullptr;
    e.activation = g.activation;
    e.alpha = g.alpha;
    e.beta = g.beta;
    kernels.epilogue(e);
}

// The most columns of op(B) that a thread packs for itself at a time.
std::int64_t own_columns(const GemmKernels& kernels) { return kernels.nr * (64 / kernels.nr + 1); }

// ---- few rows or few columns

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
        float* const x = scratch().own_b.get<float>(rows * ldx);
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

// op(A) has few rows: op(B) is read once, in place.
void skinny_rows(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    const FewRows x(kernels, rows_of_a(g, 0, 0), g.m, g.k);
    constexpr std::int64_t width = 512;  // columns at once: their sums stay in L1
    const std::int64_t unit = 32;
    parallel_for((g.n + unit - 1) / unit, grain((g.n + unit - 1) / unit, 8 * g.m * g.n * g.k),
                 [&](std::int64_t begin, std::int64_t end) {
                     float* t = scratch().tile.get<float>(g.m * width);
                     const std::int64_t last = std::min(g.n, end * unit);
                     for (std::int64_t j = begin * unit; j < last; j += width) {
                         const std::int64_t columns = std::min(width, last - j);
                         x.multiply(columns_of_b(g, 0, j), columns, t, width);
                         finish(kernels, g, bias, 0, j, g.m, columns, t, width);
                     }
                 });
}

// op(B) has few columns: computes C^T = op(B)^T op(A)^T block by block and transposes it back before the
// epilogue.
void skinny_columns(const GemmKernels& kernels, const Gemm& g, const float* bias) {
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
                         finish(kernels, g, bias, i, 0, rows, g.n, t, ldt);
                     }
                 });
}

// ---- the general case

// Whether the kernels read op(A) where it is, but for rows that are no whole panel. Of the numbers of columns that were tried, 48 to
// 3072, none was slower by more than 2 % than with packed panels, and 48 were 1.5 times as fast: so few do not pay for packing.
bool reads_in_place(const GemmKernels& kernels, const Gemm& g) {
    return kernels.tile_in_place != nullptr && g.a_type == float32 && !g.trans_a;
}

// A strip of C, one range of k, and the buffers of their packed panels.
struct Strip {
    std::int64_t i, j, p;  // origin
    std::int64_t m, n, k;  // extent
    std::int64_t slots;    // of k in the packed panels
    float *a, *b;          // packed panels; b is null if every block of columns packs its own
    float* sums;           // [m, ld_sums] float32, or null if the range is all of k
    std::int64_t ld_sums;
    bool first, last;       // of the ranges of k
    bool keep_a;            // a holds these panels already
    std::int64_t in_place;  // rows whose op(A) is read where it is; the panels in a are those of the rest
};

void pack_strip(const GemmKernels& kernels, const Gemm& g, const Strip& s, std::int64_t work) {
    const std::int64_t unit_a = kernels.mr * 8, unit_b = kernels.nr * 4;
    const std::int64_t rows_a = s.m - s.in_place, count_a = s.keep_a ? 0 : (rows_a + unit_a - 1) / unit_a,
                       count_b = s.b ? (s.n + unit_b - 1) / unit_b : 0;
    const std::int64_t count = count_a + count_b;
    parallel_for(count, work < parallel_work ? count : 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) {
            if (u < count_a) {
                const std::int64_t i = u * unit_a;
                kernels.pack_a(rows_of_a(g, s.i + s.in_place + i, s.p), std::min(unit_a, rows_a - i), s.k,
                               s.a + i * s.slots);
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
           !g.pre_activation && g.activation == Activation::none && columns % kernels.lanes == 0;
}

// How many of the slots that are left to multiply at once. What two ranges can take is halved, so that the
// last range is not short.
std::int64_t range(const GemmKernels& kernels, std::int64_t left) {
    return left > 2 * kernels.kc ? kernels.kc : left > kernels.kc ? (left + 1) / 2 : left;
}

// Computes one cache block of a strip: rows x columns at (i, j) of the strip. `b` is the packed panels of
// these columns.
void block(const GemmKernels& kernels, const Gemm& g, const float* bias, const Strip& s, const float* b,
           std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t columns, Walks& walks) {
    const bool direct = !s.sums && stores_sums(kernels, g, columns);
    float* t = direct   ? static_cast<float*>(g.c) + (s.i + i) * g.ldc + s.j + j
               : s.sums ? s.sums + i * s.ld_sums + j
                        : scratch().tile.get<float>(round_up(rows, kernels.mr) * kernels.nc);
    const std::int64_t ldt = direct ? g.ldc : s.sums ? s.ld_sums : kernels.nc;
    const bool add = direct ? g.beta != 0 : !s.first;
    const std::int64_t whole = std::clamp<std::int64_t>(s.in_place - i, 0, rows);
    std::int64_t p = 0;
    do {
        const std::int64_t k = range(kernels, s.slots - p);
        const float* panels = b + p * kernels.nr;
        const bool more = p != 0 || add;
        if (whole > 0)
            kernels.tile_in_place(static_cast<const float*>(rows_of_a(g, s.i + i, s.p + p).data), g.lda,
                                  panels, s.slots, k, whole, columns, t, ldt, more, walks);
        if (whole < rows)
            kernels.tile(s.a + (i + whole - s.in_place) * s.slots + p * kernels.mr, panels, s.slots, k,
                         rows - whole, columns, t + whole * ldt, ldt, more, walks);
        p += k;
    } while (p < s.slots);
    if (s.last && !direct) finish(kernels, g, bias, s.i + i, s.j + j, rows, columns, t, ldt);
}

// Both operands are packed: blocks of rows and columns in any order.
void compute_strip(const GemmKernels& kernels, const Gemm& g, const float* bias, const Strip& s,
                   std::int64_t work) {
    std::int64_t mc = kernels.mc, nc = kernels.nc;
    const auto blocks = [&] { return (s.m + mc - 1) / mc * ((s.n + nc - 1) / nc); };
    if (work >= parallel_work) {
        const std::int64_t wanted = 3 * num_threads();
        while (num_threads() > 1 && blocks() < wanted && (mc > 4 * kernels.mr || nc > 2 * kernels.nr)) {
            if (mc > 4 * kernels.mr) mc = round_up(mc / 2, kernels.mr);
            if (blocks() < wanted && nc > 2 * kernels.nr) nc = round_up(nc / 2, kernels.nr);
        }
    }
    const std::int64_t across = (s.n + nc - 1) / nc;
    parallel_for(blocks(), work < parallel_work ? blocks() : 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u / across * mc, j = u % across * nc;
            Walks none;
            block(kernels, g, bias, s, s.b + j * s.slots, i, j, std::min(mc, s.m - i), std::min(nc, s.n - j),
                  none);
        }
    });
}

// The walks that prefetch columns of op(B) before they are packed. None if the columns are runs of memory
// apart from each other, which the processor prefetches by itself.
Walks walks_over(const Operand& x, std::int64_t columns, std::int64_t k, std::int64_t slots) {
    const std::int64_t size = std::int64_t(size_of(x.type));
    const auto* start = static_cast<const char*>(x.data);
    if (!x.along_k) {
        const std::int64_t lines = (columns * size + 63) / 64;
        return {start, x.ld * size, lines, lines * ((k + slots - 1) / slots)};
    }
    if (x.ld != k) return {};
    return {start, 64, 1, (columns * k * size / 64 + slots - 1) / slots};
}

// Every block of columns packs its panels just before it uses them for all rows, so that they are still in
// the L2 cache. All threads get the same number of blocks of about the same width: a block spans all rows of
// C, so one more on one thread would cost noticeable time.
void compute_columns(const GemmKernels& kernels, const Gemm& g, const float* bias, const Strip& s) {
    const std::int64_t unit = kernels.lanes, units = (s.n + unit - 1) / unit, widest = own_columns(kernels);
    const std::int64_t threads = num_threads(), least = std::min(4 * threads, s.n / kernels.nr);
    const std::int64_t count = round_up(std::max((s.n + widest - 1) / widest, least), threads);
    const auto edge = [&](std::int64_t u) { return std::min(u * units / count * unit, s.n); };
    const auto source = [&](std::int64_t u) { return columns_of_b(g, s.p, s.j + edge(u)); };
    parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
        float* b = scratch().own_b.get<float>(round_up(widest, kernels.nr) * s.slots);
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t j = edge(u), columns = edge(u + 1) - j;
            kernels.pack_b(source(u), columns, s.k, b);
            const std::int64_t next = u + 1 < end ? u + 1 : u + threads;  // this thread's, if all are as fast
            Walks walks;
            if (next < count)
                walks = walks_over(source(next), edge(next + 1) - edge(next), s.k, range(kernels, s.slots));
            for (std::int64_t i = 0; i < s.m; i += kernels.mc)
                block(kernels, g, bias, s, b, i, j, std::min<std::int64_t>(kernels.mc, s.m - i), columns,
                      walks);
        }
    });
}

// If k takes many ranges, they are added up in groups of about as many ranges as there are groups, so that
// the longest chain of float32 additions grows with the square root of k.
class Groups {
public:
    Groups(std::int64_t ranges, std::int64_t size) : ranges_(ranges), size_(size) {
        while (ranges > 16 && group_ * group_ < ranges) ++group_;
        if (group_ > 1) totals_ = scratch().totals.get<float>(size);
    }
    // Called before range r > 0 adds to the sums. Returns whether the range overwrites them instead, because
    // they have been added to the totals.
    bool begins(std::int64_t r, float* sums) {
        if (group_ == 1 || r % group_ != 0) return false;
        const bool last = r + group_ >= ranges_, first = r == group_;
        for (std::int64_t i = 0; i < size_; ++i) {
            const float total = first ? sums[i] : totals_[i] + sums[i];
            (last ? sums : totals_)[i] = total;
        }
        return !last;
    }

private:
    std::int64_t ranges_, size_, group_ = 1;
    float* totals_ = nullptr;
};

void blocked(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    const std::int64_t ks = g.k <= longest_k + longest_k / 2 ? g.k : longest_k;
    const std::int64_t slots = (ks + kernels.depth - 1) / kernels.depth;
    const auto strip = [&](std::int64_t extent, std::int64_t unit) {
        return std::min(round_up(extent, unit),
                        panel_floats / std::max<std::int64_t>(slots, 512) / unit * unit);
    };
    const std::int64_t ms = strip(g.m, kernels.mr);
    const bool own = g.m <= own_rows && g.n >= 2 * num_threads() * kernels.nr;
    const std::int64_t ns = own ? g.n : strip(g.n, kernels.nr);
    Scratch& buffers = scratch();
    const bool in_place = reads_in_place(kernels, g);
    Strip s{};
    s.a = buffers.a.get<float>((in_place ? kernels.mr : ms) * slots);
    s.b = own ? nullptr : buffers.b.get<float>(ns * slots);
    if (g.k > ks) s.sums = buffers.strip.get<float>(ms * round_up(ns, kernels.nr));
    s.ld_sums = round_up(ns, kernels.nr);
    for (s.j = 0; s.j < g.n; s.j += ns) {
        s.n = std::min(ns, g.n - s.j);
        for (s.i = 0; s.i < g.m; s.i += ms) {
            s.m = std::min(ms, g.m - s.i);
            s.in_place = in_place ? s.m / kernels.mr * kernels.mr : 0;
            s.p = 0;
            Groups groups(s.sums ? (g.k + ks - 1) / ks : 1,
                          s.sums ? round_up(s.m, kernels.mr) * s.ld_sums : 0);
            do {
                s.k = std::min(ks, g.k - s.p);
                s.slots = (s.k + kernels.depth - 1) / kernels.depth;
                s.first = s.p == 0 || groups.begins(s.p / ks, s.sums);
                s.last = s.p + s.k == g.k;
                s.keep_a = s.j > 0 && ms >= g.m && ks == g.k;
                const std::int64_t work = s.m * s.n * s.k;
                pack_strip(kernels, g, s, work);
                own ? compute_columns(kernels, g, bias, s) : compute_strip(kernels, g, bias, s, work);
                s.p += s.k;
            } while (s.p < g.k);
        }
    }
}

// Multiplies on tiles if the kernels have them for the operands; returns whether it did. `bias` is float32 or
// null.
bool done_on_tiles(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    if (!kernels.tiles || g.a_type != g.b_type || !worth_packing(g)) return false;
    const TileProduct* product = tile_product(*kernels.tiles, g.a_type, float32_matmul_precision());
    if (!product) return false;
    Gemm with_bias = g;
    with_bias.bias = bias;
    with_bias.bias_type = float32;
    gemm_on_tiles(*product, with_bias, kernels);
    return true;
}

// k = 0: C is what the epilogue makes of sums that are zero.
void empty_sums(const GemmKernels& kernels, const Gemm& g, const float* bias) {
    constexpr std::int64_t width = 1024;
    const auto rows_at_once = std::max<std::int64_t>(1, 64 * width / g.n);
    parallel_for(g.m, rows_at_once, [&](std::int64_t begin, std::int64_t end) {
        float* zeros = scratch().tile.get<float>(width);
        std::fill(zeros, zeros + width, 0.0f);
        for (std::int64_t j = 0; j < g.n; j += width)
            finish(kernels, g, bias, begin, j, end - begin, std::min(width, g.n - j), zeros, 0);
    });
}

}  // namespace

std::int64_t grain(std::int64_t n, std::int64_t work) {
    if (work < parallel_work) return n;
    return std::max<std::int64_t>(1, n * (parallel_work / 8) / work);
}

bool worth_packing(const Gemm& g) { return g.m > skinny_m && g.n > skinny_n; }

void multiply_one(const GemmKernels& kernels, const Gemm& g) {
    const float* bias = static_cast<const float*>(g.bias);
    if (g.bias && g.bias_type != float32) {
        float* converted = scratch().bias.get<float>(g.n);
        convert(g.bias, g.bias_type, converted, float32, g.n);
        bias = converted;
    }
    if (g.k == 0) return empty_sums(kernels, g, bias);
    if (done_on_tiles(kernels, g, bias)) return;
    if (g.m <= skinny_m)
        skinny_rows(kernels, g, bias);
    else if (g.n <= skinny_n)
        skinny_columns(kernels, g, bias);
    else
        blocked(kernels, g, bias);
}

void finish_sums(const GemmKernels& kernels, const Gemm& g, const float* t, std::int64_t ldt) {
    finish(kernels, g, static_cast<const float*>(g.bias), 0, 0, g.m, g.n, t, ldt);
}

}  // namespace mezzo::cpu
