// The inner loops of batch and group normalisation, one table per instruction set. Elements lie in rows of
// `columns`, a multiple of 16; element i belongs to column i % columns, and all per-column arrays have that
// length. If an image has fewer than 64 channels, or a number that 16 does not divide, a row holds several
// pixels, and so a channel has several columns; the loops treat all columns alike. The last row may end
// early.
#pragma once

#include <cstdint>

namespace mezzo::cpu {

// sums[j] += x - pivot[j] and squares[j] += (x - pivot[j])^2 for the n elements of each column.
template <class R> struct MomentsLoop {
    const void* x;
    std::int64_t n, columns;
    const R* pivot;
    R *sums, *squares;
};
// y = relu((x - mean) scale + shift + residual), and a bit for each element that is set where y > 0, 8 to a
// byte. y may be x or the residual.
template <class R> struct NormaliseLoop {
    const void *x, *residual;  // no residual: null
    void* y;
    std::uint8_t* bits;  // null: none
    std::int64_t n, columns;
    const R *mean, *scale, *shift;
    bool relu;
};
// sums[j] += g and products[j] += g (x - mean[j]), where g counts as 0 unless its bit is set.
template <class R> struct GradSumsLoop {
    const void *g, *x;
    const std::uint8_t* bits;  // null: all are set
    void* masked;              // g with those zeros, or null
    std::int64_t n, columns;
    const R* mean;
    R *sums, *products;
};
// dx = g scale - (x - mean) slope - offset, where g counts as 0 unless its bit is set. dx may be g or x.
template <class R> struct NormaliseGradLoop {
    const void *g, *x;
    const std::uint8_t* bits;  // null: all are set
    void* dx;
    std::int64_t n, columns;
    const R *mean, *scale, *slope, *offset;
};

// Loops over images of one dtype that compute in R.
template <class R> struct ChannelLoopsOf {
    void (*moments)(const MomentsLoop<R>& loop);
    void (*normalise)(const NormaliseLoop<R>& loop);
    void (*grad_sums)(const GradSumsLoop<R>& loop);
    void (*normalise_grad)(const NormaliseGradLoop<R>& loop);
};
struct ChannelLoops {
    ChannelLoopsOf<float> narrow[3];  // float16, bfloat16, float32: by convert_index()
    ChannelLoopsOf<double> f64;
};

// The tables as the units fill them; loop_tables.h replaces missing entries.
extern const ChannelLoops channels_portable, channels_avx2, channels_avx512;

}  // namespace mezzo::cpu
