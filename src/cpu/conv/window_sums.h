// Weighted sums or means over windows of an image, for average pooling and resizing.
#pragma once

#include <algorithm>
#include <vector>

#include "core/tensor_impl.h"
#include "core/visit_dtype.h"
#include "cpu/parallel.h"
#include "cpu/pool/pool_loops.h"

namespace mezzo::cpu {

// The runs that the results along one axis read, one per result, and for means the divisors of the sums.
template <class R> struct AxisRuns {
    std::vector<WeightedRun<R>> runs;
    std::vector<R> weights, divisors;
};

// The loops of active_isa().
const PoolLoops& active_pool_loops();

template <class T> const auto& pool_table() {
    if constexpr (std::is_same_v<T, double>)
        return active_pool_loops().f64;
    else if constexpr (std::is_same_v<T, float>)
        return active_pool_loops().f32;
    else if constexpr (std::is_same_v<T, float16_t>)
        return active_pool_loops().f16;
    else
        return active_pool_loops().bf16;
}

// Calls f(image, row, first channel, end) for all rows of images [N, H, W, C]; if there are few rows, for
// parts of their channels. `work` elements are read per row.
template <class F> void for_image_rows(const Tensor& y, std::int64_t work, const F& f) {
    const std::int64_t height = y->shape[1], channels = y->shape[3], rows = y->shape[0] * height;
    constexpr std::int64_t part = 256, enough_rows = 64, grain = 32768;
    const std::int64_t parts = rows < enough_rows ? std::max<std::int64_t>(1, channels / part) : 1;
    parallel_for(rows * parts, grain * parts / std::max<std::int64_t>(work, 1) + 1,
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                         const std::int64_t row = i / parts, p = i % parts;
                         f(row / height, row % height, p * part, p + 1 == parts ? channels : (p + 1) * part);
                     }
                 });
}

// Every pixel of y = the sum of x over a run of rows and one of columns; a mean if there are divisors.
template <class T, class R>
void sum_windows(const Tensor& x, const Tensor& y, const AxisRuns<R>& height, const AxisRuns<R>& width) {
    if (y->numel == 0) return;
    const std::int64_t columns = y->shape[2], channels = y->shape[3],
                       image = x->shape[1] * x->shape[2] * channels;
    std::int64_t read = 0;
    for (const WeightedRun<R>& run : width.runs) read += run.end - run.begin;
    const bool mean = !width.divisors.empty();
    const auto loop = mean ? pool_table<T>().mean : pool_table<T>().weighted;
    const std::int64_t taps = height.runs[0].end - height.runs[0].begin;
    for_image_rows(y, (read * taps + columns) * channels,
                   [&](std::int64_t n, std::int64_t row, std::int64_t first, std::int64_t last) {
                       WindowRow<T, R> w{};
                       w.to = reinterpret_cast<T*>(y->bytes()) + (n * y->shape[1] + row) * columns * channels;
                       w.from = reinterpret_cast<const T*>(x->bytes()) + n * image;
                       w.width = x->shape[2];
                       w.channels = channels;
                       w.first = first;
                       w.last = last;
                       w.count = columns;
                       w.rows = height.runs[std::size_t(row)];
                       w.columns = width.runs.data();
                       if (mean) {
                           w.row_divisor = height.divisors[std::size_t(row)];
                           w.divisors = width.divisors.data();
                       }
                       loop(w);
                   });
}

// Calls f(T(), R()) with the type of elements of the dtype and that of their arithmetic.
template <class F> void with_pixel_type(Dtype dtype, const F& f) {
    if (dtype == float64)
        f(double(), double());
    else if (dtype == float32)
        f(float(), float());
    else if (dtype == float16)
        f(float16_t(), float());
    else
        f(bfloat16_t(), float());
}

}  // namespace mezzo::cpu
