// Geometry of resizing along one axis, from `size` pixels to `results`, shared by all backends: the pixels
// that a result reads.
#pragma once

#include "kernels/functor_math.h"
#include "kernels/pool.h"

namespace mezzo::kernels {

// The pixel nearest to result i. The arithmetic is PyTorch's, in float, so that the same pixels come out
// where rounding decides.
MEZZO_HD std::int64_t nearest_pixel(std::int64_t size, std::int64_t results, std::int64_t i) {
    if (size == results) return i;
    const float scale = float(size) / float(results);
    const std::int64_t pixel = std::int64_t(float(i) * scale);
    return pixel < size ? pixel : size - 1;
}

// A result between pixel and next: (1 - weight) x[pixel] + weight x[next].
template <class R> struct Between {
    std::int64_t pixel, next;
    R weight;
};

template <class R> MEZZO_HD Between<R> between_pixels(std::int64_t size, std::int64_t results,
                                                      bool align_corners, std::int64_t i) {
    if (size == results) return {i, i, 0};
    // The exact position is numerator / denominator.
    const std::int64_t numerator = align_corners ? i * (size - 1) : (2 * i + 1) * size - results;
    const std::int64_t denominator = align_corners ? (results > 1 ? results - 1 : 1) : 2 * results;
    if (numerator <= 0) return {0, 0, 0};
    const std::int64_t pixel = numerator / denominator;
    if (pixel >= size - 1) return {size - 1, size - 1, 0};
    return {pixel, pixel + 1, R(numerator - pixel * denominator) / R(denominator)};
}

// The same for either kind of resizing.
template <class R, class At>
MEZZO_HD Between<R> read_pixels(const At& at, std::int64_t size, std::int64_t results, std::int64_t i) {
    if (at.bilinear) return between_pixels<R>(size, results, at.align_corners, i);
    const std::int64_t pixel = nearest_pixel(size, results, i);
    return {pixel, pixel, 0};
}

}  // namespace mezzo::kernels
