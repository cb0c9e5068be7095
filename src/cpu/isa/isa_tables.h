// Tables of GEMM and conversion kernels, which the units of each instruction set (*_isa.cpp) fill. They hold
// plain function pointers, because those units may share no inline function with the rest of the library
// (vector.h says why).
#pragma once

#include <cstdint>

#include "cpu/gemm/gemm.h"
#include "cpu/isa/isa.h"

namespace mezzo::cpu {

// Epilogue of a finished float32 block t[rows, columns]: the computation from the sums to C.
struct Epilogue {
    const float* t;
    std::int64_t ldt;  // t's rows are readable up to a multiple of the vector width
    std::int64_t rows, columns;
    void* c;
    void* pre_activation;  // or null
    const void* saved;     // or null: see Gemm; only float32
    const void* added;     // or null: see Gemm
    std::int64_t ldc;
    Dtype c_type;
    const float* bias;  // or null
    Activation activation;
    float alpha, beta;
    // Streaming stores, past the caches. Then c_type is float32, beta is 0, and every row of c and of
    // pre_activation begins at a multiple of the vector's size.
    bool stream = false;
};

// A block of an operand: `width` rows of op(A) or columns of op(B), `k` long.
struct Operand {
    const void* data;
    Dtype type;
    std::int64_t ld;
    bool along_k;  // the operand is contiguous along k, else along its rows or columns
};

// Memory that tile() prefetches into the L2 cache while it computes, region by region. A region is `runs`
// runs of `lines` neighbouring lines of 64 bytes; each run begins `pitch` bytes behind the one before.
// Prefetched lines are removed from their region.
struct Prefetch {
    struct Region {
        const char* start = nullptr;
        std::int64_t pitch = 0, runs = 0, lines = 0;
        std::int64_t line = 0;  // the next one of the first run
    };
    static constexpr int most = 4;  // regions
    static constexpr int slots = 16;
    Region regions[most];
    int count = 0, at = 0;  // regions, and the one that is next
    int pace = 0;           // lines while `slots` slots are multiplied
};

struct TileKernels;

// Columns of op(B) for tile(): packed panels, or float32 rows that are read where they are. From slot to slot
// are `step` floats, from nr columns to the next nr `panel` floats.
struct TileColumnsOfB {
    const float* data;
    std::int64_t step, panel;
};

// Few rows of x, and rows of 8-bit codes of a weight with their scales.
struct CodeProduct {
    const float* x;  // [rows, ldx], zero from k on up to a multiple of code_steps, which is readable
    std::int64_t ldx, rows;
    const void* codes;  // [count, k], int8 or float8_e4m3fn
    Dtype type;
    const float* scale;   // [count, groups]; of float8_e4m3fn 256 times as large
    std::int64_t groups;  // of a row: 1, or k / code_steps
    std::int64_t k, count;
    float* t;  // [rows, ldt]
    std::int64_t ldt;
};
constexpr std::int64_t code_steps = 32;

constexpr std::int64_t largest_small = 16;

constexpr std::int64_t packed_columns = 16, packed_steps = 4;

struct GemmKernels {
    int mr, nr;      // register tile
    int depth;       // steps of k in a 32-bit slot of a packed panel: 1 (float) or 2 (bfloat16)
    int kc, mc, nc;  // cache blocks: kc slots, mc rows, nc columns; mc, nc multiples of mr, nr

    // dst[panel][p][i] = x[panel * mr + i][p], as float or in pairs of steps; pack_b does the same with nr. k
    // counts steps; the last slot, and the last panel up to a multiple of the vector width, are filled up
    // with zeros.
    void (*pack_a)(const Operand& x, std::int64_t width, std::int64_t k, float* dst);
    void (*pack_b)(const Operand& x, std::int64_t width, std::int64_t k, float* dst);

    // t[rows, columns] = or += the product of packed panels of op(A), which lie `panel_k` slots apart, and
    // op(B) over k slots. Reads and writes whole vectors: columns are rounded up to a multiple of the vector
    // width.
    void (*tile)(const float* a, std::int64_t panel_k, const TileColumnsOfB& b, std::int64_t k,
                 std::int64_t rows, std::int64_t columns, float* t, std::int64_t ldt, bool accumulate,
                 Prefetch& ahead);

    void (*epilogue)(const Epilogue& e);

    // Few rows: t[rows, width] = x[rows, k] y[k, width], y unpacked; x float32, zero up to ldx.
    void (*skinny)(const float* x, std::int64_t ldx, std::int64_t rows, const Operand& y, std::int64_t width,
                   std::int64_t k, float* t, std::int64_t ldt);
    // C = op(A) op(B) for small matrices of one type: k <= largest_small, n <= lanes.
    void (*small)(const Gemm& g);
    int lanes;

    // sums[i] += the sum over `slots` slots of row i of packed panels, which lie `slots` slots apart. Null if
    // no caller needs sums.
    void (*panel_sums)(const float* panels, std::int64_t slots, std::int64_t rows, double* sums) = nullptr;

    // Products of operands of one type on tile registers (tile_tables.h), or null.
    const TileKernels* tiles = nullptr;

    // tile() with rows of op(A) that are read where they are: float32, contiguous along k, `lda` floats
    // apart, and a multiple of mr. The sums have the same bits. Null where a slot has two steps.
    void (*tile_in_place)(const float* a, std::int64_t lda, const TileColumnsOfB& b, std::int64_t k,
                          std::int64_t rows, std::int64_t columns, float* t, std::int64_t ldt,
                          bool accumulate, Prefetch& ahead) = nullptr;

    // skinny() for `count` packed panels of packed_columns columns of y (packed_weight.h), k long:
    // t[rows, count * packed_columns]. x is zero, and readable, up to a multiple of packed_steps.
    void (*panels)(const float* x, std::int64_t ldx, std::int64_t rows, const void* y, Dtype type,
                   std::int64_t k, std::int64_t count, float* t, std::int64_t ldt) = nullptr;

    // t[rows, count] = x (codes scale)^T.
    void (*codes)(const CodeProduct& p) = nullptr;
    // t[count, k] = codes scale, rows ldt apart; writes up to a multiple of code_steps. Reads no x.
    void (*code_values)(const CodeProduct& p) = nullptr;
};

// [from][to] by convert_index(); the diagonal is null.
struct ConvertKernels {
    void (*convert[3][3])(const void* src, void* dst, std::int64_t n);
    // From small integers to float32: boolean, uint8, int32.
    void (*to_float[3])(const void* src, void* dst, std::int64_t n);
    // From float32 to float8: e4m3fn, e5m2, e8m0fnu.
    void (*to_float8[3])(const void* src, void* dst, std::int64_t n);
    // float32 to float64 and back; float64 to float32 by rounding to odd (core/round_to_odd.h).
    void (*to_double)(const void* src, void* dst, std::int64_t n);
    void (*from_double)(const void* src, void* dst, std::int64_t n);
    void (*from_double_to_odd)(const void* src, void* dst, std::int64_t n);
};

// The dtypes that vectors convert among; -1: not by vectors.
constexpr int convert_index(Dtype dtype) {
    return dtype == Dtype::float16 ? 0 : dtype == Dtype::bfloat16 ? 1 : dtype == Dtype::float32 ? 2 : -1;
}

// Tables of instruction sets that the compiler lacks are all zero. gemm_avx512_bf16 multiplies bfloat16 by
// bfloat16 only, and has no epilogue and no skinny.
extern const GemmKernels gemm_portable, gemm_avx2, gemm_avx512, gemm_avx512_bf16;
extern const ConvertKernels convert_portable, convert_avx2, convert_avx512;

// The kernels of an instruction set. Isa::avx512_bf16 has gemm_avx512_bf16 completed from gemm_avx512;
// Isa::amx has gemm_avx512 with tiles, or the kernels of Isa::avx512_bf16 if the process may not use tiles.
const GemmKernels& gemm_kernels(Isa isa);

// gemm() with the given kernels; for tests, which may so combine the kernels of several instruction sets.
// Kernels of depth 2 are replaced by gemm_avx512 if an operand is not bfloat16.
void gemm(const Gemm& g, const GemmKernels& kernels);

// Whether a product has enough rows and columns for panels; else one operand is read unpacked.
bool worth_packing(const Gemm& g);

// gemm() with these kernels, but never on tiles.
void gemm_without_tiles(const Gemm& g, const GemmKernels& kernels);

// C = activation(alpha t + bias + beta C) for float32 sums t of one matrix; the bias is float32 or null.
void finish_sums(const GemmKernels& kernels, const Gemm& g, const float* t, std::int64_t ldt);

// The float64 product; called by gemm() after the checks.
void gemm_f64(const Gemm& g);

}  // namespace mezzo::cpu
