// Geometry of pooling along one axis, shared by all backends: the pixels that a window reads, and the windows
// that read a pixel. `size` is the number of pixels, `results` that of windows.
#pragma once

#include "kernels/functor_math.h"
#include "kernels/pool.h"

namespace mezzo::kernels {

// Kernel positions of a window. Position p, begin <= p < end, reads pixel first + p * dilation; the others
// are padding.
struct PoolPlaces {
    std::int64_t first, begin, end;
};

MEZZO_HD PoolPlaces places_of(const PoolAxis& axis, std::int64_t size, std::int64_t results,
                              std::int64_t window) {
    if (axis.adaptive) {
        const std::int64_t first = window * size / results;
        return {first, 0, ((window + 1) * size + results - 1) / results - first};
    }
    const std::int64_t first = window * axis.stride - axis.padding, apart = axis.dilation;
    std::int64_t begin = first < 0 ? -first : 0, room = first < size ? size - first : 0;
    if (apart != 1) {
        begin = (begin + apart - 1) / apart;
        room = (room + apart - 1) / apart;
    }
    const std::int64_t end = room < axis.kernel ? room : axis.kernel;
    return {first, begin, end > begin ? end : begin};
}

// The number of elements of a mean along the axis. With padding, only `padding` positions after the last
// pixel count: a window that ceil_mode added may reach beyond.
MEZZO_HD std::int64_t count_of(const PoolAxis& axis, std::int64_t size, const PoolPlaces& places,
                               bool with_padding) {
    if (!with_padding || axis.adaptive) return places.end - places.begin;
    const std::int64_t room = size + axis.padding - places.first;
    return room < axis.kernel ? room : axis.kernel;
}

// The windows [begin, end) that may read a pixel; with dilation some of them do not.
struct PoolReaders {
    std::int64_t begin, end;
};

MEZZO_HD PoolReaders readers_of(const PoolAxis& axis, std::int64_t size, std::int64_t results,
                                std::int64_t pixel) {
    if (axis.adaptive) return {pixel * results / size, ((pixel + 1) * results + size - 1) / size};
    const std::int64_t place = pixel + axis.padding,
                       span = std::int64_t(axis.dilation) * (axis.kernel - 1) + 1;
    const std::int64_t begin = place < span ? 0 : (place - span) / axis.stride + 1;
    const std::int64_t end = place / axis.stride + 1;
    return {begin, end < results ? end : results};
}

// The kernel position at which a window reads a pixel, or -1.
MEZZO_HD std::int64_t place_of(const PoolAxis& axis, std::int64_t size, std::int64_t results,
                               std::int64_t window, std::int64_t pixel) {
    if (axis.adaptive) return pixel - window * size / results;
    const std::int64_t distance = pixel + axis.padding - window * axis.stride;
    return axis.dilation == 1 ? distance : distance % axis.dilation == 0 ? distance / axis.dilation : -1;
}

}  // namespace mezzo::kernels
