// Tables of kernels for windows (windows.h) that lie in the image as float32, or as pairs of bfloat16
// channels. The unit of each instruction set fills one, with plain function pointers for the reason that
// isa_tables.h gives.
#pragma once

#include "cpu/isa/isa_tables.h"

namespace mezzo::cpu {

// Product of slots [first, first + steps) of some taps of some windows with a panel of the weight. A slot is
// 32 bits: one channel as float32, or two as bfloat16. The channels of tap t of window i lie at lines[t *
// ld_lines + i]. Behind the last window of a tap there are 2 * mr more pointers, which need not be valid:
// their targets are prefetched.
struct WindowTile {
    const float* const* lines;
    std::int64_t ld_lines;
    const float* zeros;  // the line of taps outside the image, which are left out where all windows have it
    std::int64_t taps, first, steps;
    const float* b;  // a panel of nr columns, from the first of these slots on
    std::int64_t rows, columns;
    float* t;  // [rows, columns]; columns are written up to a multiple of the vector width
    std::int64_t ldt;
    bool accumulate;  // t += instead of t =
    // The results that follow from t, or t itself, and the bytes from row to row: prefetched.
    char* result;
    std::int64_t ld_result;
    const char* added;  // in the layout of `result`; prefetched, too, if it is not null
    // Whether the sums go to `result` as float32, after `bias` [columns], `added` and ReLU, and t only has
    // those of earlier steps, if `accumulate`. Columns are a multiple of the vector width. With depth 1.
    bool finish, relu;
    const float* bias;  // or null
    // Weights of a later tile: `pace` cache lines for every window_steps steps, prefetched to the
    // L2 cache.
    const char* ahead;
    std::int64_t pace;
};
constexpr std::int64_t window_steps = 16;

// Neighbouring pixels of products whose steps are one channel each: a step of pixel i, channel c is element
// offset + i * stride + c of `from`, behind which a vector more may be read. It belongs to row `index` of the
// weight. If images of groups with several channels are read themselves, `inputs` is the number of channels
// in and out: a step is that many steps, each of which takes another channel of c's group. Otherwise it is 1.
struct DepthwiseStep {
    std::int64_t offset, index;
};
struct DepthwiseRow {
    const float* from;
    const DepthwiseStep* list;
    std::int64_t stride, steps, pixels, channels, inputs;
};
// to[i * ld + c] = bias[c] + sum over steps of w[index * ld_w + c] * the step of pixel i, channel c. Rows of
// w and bias are whole vectors.
struct DepthwiseProduct {
    DepthwiseRow row;
    const float *w, *bias;
    std::int64_t ld_w;
    float* to;
    std::int64_t ld;
    bool stream;  // past the caches: `to`, ld and the channels are multiples of a vector
};
// sums[index * ld_sums + c] += sum over pixels of gradient[i * ld_gradient + c] * the step of pixel i,
// channel c. Rows of sums are whole vectors.
struct DepthwiseGradient {
    DepthwiseRow row;
    const float* gradient;
    std::int64_t ld_gradient;
    float* sums;
    std::int64_t ld_sums;
};

struct WindowKernels {
    int mr, nr;
    int depth;  // channels in a slot: 1 (float32) or 2 (bfloat16)
    int lanes;

    // One panel of a weight, as GemmKernels::pack_b's.
    void (*pack)(const Operand& x, std::int64_t width, std::int64_t k, float* dst);
    void (*multiply)(const WindowTile& tile);

    // to[i] = first + i * stride, for i < n.
    void (*find)(const char* first, std::int64_t stride, std::int64_t n, const char** to);

    // For gradients, as in GemmKernels, with panels of mr rows and nr columns. Operands of pack_a are
    // contiguous along their lines. With depth 2, a slot is a pair of bfloat16 of two images, and its type is
    // given as float32.
    void (*pack_a)(const Operand& x, std::int64_t width, std::int64_t k, float* dst);
    void (*tile)(const float* a, std::int64_t panel_k, const TileColumnsOfB& b, std::int64_t k,
                 std::int64_t rows, std::int64_t columns, float* t, std::int64_t ldt, bool accumulate,
                 Prefetch& ahead);
    // dst[p * nr + i] = channel first + i of line p as float, for i < width.
    void (*pack_lines)(const char* const* lines, Dtype type, std::int64_t first, std::int64_t width,
                       std::int64_t k, float* dst);

    // tile() for one panel whose columns are whole vectors that lie in float32 windows: vector v of step p
    // begins at element firsts[v] of line lines[v][p].
    void (*tile_in_place)(const float* a, const float* const* const* lines, const std::int64_t* firsts,
                          std::int64_t k, std::int64_t rows, std::int64_t columns, float* t, std::int64_t ldt,
                          bool accumulate, Prefetch& ahead);

    // Null if depth is 2, as are the next two. to[i * step + j] += from[i * ld + j], for i < n and j < width.
    void (*add_rows)(const float* from, std::int64_t ld, float* to, std::int64_t step, std::int64_t n,
                     std::int64_t width) = nullptr;
    void (*depthwise)(const DepthwiseProduct& product) = nullptr;
    void (*depthwise_gradient)(const DepthwiseGradient& gradient) = nullptr;

    // Null if depth is 1. to[i] = the pair of first[i] and second[i], or of first[i] and 0 if `second` is
    // null, for i < n.
    void (*pair)(const bfloat16_t* first, const bfloat16_t* second, std::int64_t n, float* to) = nullptr;
};

// All zero if the compiler lacks the instruction set.
extern const WindowKernels windows_portable, windows_avx2, windows_avx512, windows_avx512_bf16;

// The kernels of the instruction set in use, of depth 1.
const WindowKernels& window_kernels();

}  // namespace mezzo::cpu
