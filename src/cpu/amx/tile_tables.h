// Matrix products on tile registers (AMX): the tables that the unit compiled for them fills for
// tile_gemm.cpp, with plain function pointers for the reason that isa_tables.h gives.
//
// A tile is 16 rows of 64 bytes: 16 lines by 32 steps of k of op(A), or 16 pairs of steps by 16 lines of
// op(B), both bfloat16, or 16 x 16 float32 sums. A panel is 32 lines of an operand; for each 32 steps of k
// and each plane (see TileProduct) it holds two tiles.
#pragma once

#include <cstdint>

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

inline constexpr std::int64_t tile_bytes = 1024;
inline constexpr std::int64_t tile_steps = 32;   // of k in a tile of an operand
inline constexpr std::int64_t panel_lines = 32;  // rows of op(A) or columns of op(B)

// A part of an operand that is to be packed into panels.
struct TilePacking {
    Operand x;                // `width` lines, `k` steps of k each
    std::int64_t width, k;    // packing fills up to whole tiles with zeros
    std::int64_t first, end;  // the tiles along k to pack
    char* to;                 // where the panel of the first line begins
    std::int64_t panel;       // bytes from one panel to the next
};

// A part of C and a range of k: rows [i, i_end), columns from j on, `count` tiles of k from tile `first` on.
struct TileBlock {
    const Gemm& g;
    const float* bias;  // of all columns of C, or null
    std::int64_t i, i_end, j, columns;
    std::int64_t first, count;
    const char* a;  // panels of op(A) from row 0 and step 0 on, `a_panel` bytes each; null: packed here
    std::int64_t a_panel;
    bool in_place;         // whole tiles of op(A) may be read unpacked
    char* a_scratch;       // where op(A) is packed 32 rows at a time, a_range tiles of k at once; or null
    std::int64_t a_range;  // tiles of k of op(A) that stay in the L1 cache
    const char* b;         // panels of op(B) of these columns and this range of k
    std::int64_t b_panel;  // bytes from one of them to the next
    float* sums;           // 32 x 32 blocks: one row of them, or with all_rows those of the whole part
    bool all_rows;         // the range is not the whole of k, so the sums of all rows are saved
};

// Some rows of C, ldc elements apart, from element c on. The rows of op(A) lie in an image: the first `split`
// of them, at most 16, from `first` on and the others, at most 16, from `second` on.
struct TileRun {
    const char *first, *second;
    std::int64_t split, rows;
    std::int64_t c;
};

// Runs of rows times all columns and all of k. Whole tiles of op(A) are read at any rows, also at those that
// a run lacks.
struct TileWindows {
    const Gemm& g;
    const float* bias;
    const TileRun* runs;
    std::int64_t runs_count;
    std::int64_t stride;          // bytes from row to row
    const std::int64_t* offsets;  // for each 32 steps of k, where they lie behind a row: bytes
    std::int64_t count;           // of them
    const char* b;                // panels of op(B)
};

// 16 columns of a weight gradient: `offset` bytes behind a pixel, and in the sums from column `at` on.
struct TileColumns {
    std::int64_t offset, at;
};

// sums = (or +=) the gradients of some pixels times the elements that some columns read around them. A step
// of k is a pixel of two images, whose elements are paired as AMX requires.
struct TileGradient {
    const char* a;  // for each 16 rows of sums, `count` tiles: those rows times 16 pixels
    std::int64_t rows, count;
    const char* const* pixels;  // where the 16 pixels of each tile begin
    std::int64_t stride;        // bytes from pixel to pixel
    const TileColumns* columns;
    std::int64_t columns_count;
    float* sums;
    std::int64_t ld;
    bool accumulate;
};

// Product of operands of given types. Each operand is split into planes, bfloat16 matrices whose sum it is,
// and the planes of op(A) are multiplied with those of op(B).
struct TileProduct {
    int planes_a = 0, planes_b = 0;  // 0: there is no such product
    // Returns false if an element has no planes: infinities, NaN, float32 of magnitude 2^56 and more. A
    // product with one plane takes all elements.
    bool (*pack_a)(const TilePacking& p) = nullptr;
    bool (*pack_b)(const TilePacking& p) = nullptr;
    // Finishes the rows of C (alpha, bias, beta, activation, rounding) when the range ends with k.
    void (*multiply)(const TileBlock& block) = nullptr;

    // From here on null, except in the product of bfloat16 as it is.
    void (*multiply_windows)(const TileWindows& windows) = nullptr;
    void (*add_gradient)(const TileGradient& gradient) = nullptr;
    // to = pairs of n elements, a multiple of 16; the second of a pair is 0 if `second` is null.
    void (*pair)(const char* first, const char* second, std::int64_t n, char* to) = nullptr;
    // to = a tile of op(A), 16 lines of pairs of some pixels (at most 16, the others are zeros) that lie
    // `stride` bytes apart.
    void (*pair_lines)(const char* first, const char* second, std::int64_t stride, std::int64_t pixels,
                       char* to) = nullptr;
    // Copies n pieces of `used` elements that lie `step` bytes apart. Zeros fill each up to whole tiles.
    void (*copy_pieces)(const char* from, std::int64_t step, std::int64_t used, std::int64_t n,
                        char* to) = nullptr;
};

struct TileKernels {
    TileProduct bf16;       // bfloat16 as it is
    TileProduct f16;        // float16 in two planes, all four products: exact
    TileProduct f32_six;    // float32 in three planes, the six products that reach float32's accuracy
    TileProduct f32_three;  // float32 in two planes, 16 of its 24 bits, three products
    // The products of attention: a 16-bit operand with float32 weights, of which 16 bits are used.
    TileProduct bf16_f32, f32_bf16, f16_f32, f32_f16;
};

// Empty if the compiler has no AMX. Its products may run only after request_tiles() has returned true.
extern const TileKernels tiles_amx;

}  // namespace mezzo::cpu
