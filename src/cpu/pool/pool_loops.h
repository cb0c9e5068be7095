// The inner loops of pooling and resizing: one row of a result, vectors over channels. There is a table per
// instruction set, for the reasons in loops.h.
#pragma once

#include <cstdint>

#include "kernels/pool.h"

namespace mezzo::cpu {

// A run of neighbouring rows or columns that a pixel of the result reads, and the weights of each.
template <class R> struct WeightedRun {
    std::int64_t begin, end;
    const R* weights;  // of `begin` and those after it; not read by means
};

// A row of a result: `count` pixels of `channels` elements, which lie one after the other. T is the type of
// the elements, R that of the arithmetic.
template <class T, class R> struct WindowRow {
    T* to;
    const T* from;             // of the image that is read: pixel (0, 0)
    std::int64_t width;        // of that image
    std::int64_t channels;     // from one pixel to the next
    std::int64_t first, last;  // the channels to compute
    std::int64_t count;
    WeightedRun<R> rows;
    const WeightedRun<R>* columns;  // per pixel
    // Of means: the sums are divided by row_divisor * divisors[pixel].
    R row_divisor;
    const R* divisors;
};

// A row of max_pool2d, its gradient, or the gradient's gradient. The positions of the maxima are
// uint8, or uint32 if wide_places.
template <class T> struct MaxRow {
    T* to;
    const T* from;  // the image or, for gradients, the gradient of the result: pixel (0, 0)
    void* places;   // of the result's row, or null; for gradients of the whole result
    bool wide_places;
    std::int64_t channels, first, last;
    std::int64_t row;  // the index of `to`
    kernels::PoolAxis height, width;
    std::int64_t image_height, image_width, result_height, result_width;
    std::int64_t window_width;  // places_along(width)
};

template <class T, class R> struct PoolTable {
    void (*weighted)(const WindowRow<T, R>& row);
    void (*mean)(const WindowRow<T, R>& row);
    void (*max)(const MaxRow<T>& row);
    void (*max_grad)(const MaxRow<T>& row);
};

struct PoolLoops {
    PoolTable<float, float> f32;
    PoolTable<double, double> f64;
    PoolTable<float16_t, float> f16;
    PoolTable<bfloat16_t, float> bf16;
};

// The tables as the units fill them; loop_tables.h replaces missing entries.
extern const PoolLoops pool_portable, pool_avx2, pool_avx512;

}  // namespace mezzo::cpu
