// Windows: the rows of the matrix that a convolution multiplies with its weight (im2col). A window belongs to
// one pixel of the result; it has as many steps as taps (kernel positions) times channels, in this order,
// which lie in the source image, or are zero where a tap falls outside of it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/conv.h"
#include "mezzo/dtype.h"

namespace mezzo::cpu {

// One tap: the window of pixel (i, j) reads pixel (i * step.height + h, j * step.width + w) of the source. It
// is multiplied with tap `index` of the weight.
struct Tap {
    std::int64_t h, w, index;
};

struct Windows {
    const char* data = nullptr;  // first channel of the first pixel
    Dtype type = float32;
    std::int64_t images = 0, height = 0, width = 0;  // of the source
    std::int64_t pixel = 0;                          // elements from one pixel to the next
    std::int64_t channels = 0;                       // of a tap; more than `pixel`: of several pixels
    std::int64_t rows = 0, columns = 0;              // windows per image
    Size2d step = 1;
    std::vector<Tap> taps = {};
    std::int64_t origin = 0;  // the pixel of the source that `data` begins with

    std::int64_t count() const { return images * rows * columns; }
    std::int64_t steps() const { return std::int64_t(taps.size()) * channels; }

    // lines[i] = where the channels of tap t of window begin + i lie, or `zeros`, for i < n.
    void find(std::int64_t t, std::int64_t begin, std::int64_t n, const char* zeros,
              const char** lines) const;
    // A range of pixels of the source, [first, end), that contains all of windows [begin, begin + n), n > 0.
    struct PixelRange {
        std::int64_t first, end;
    };
    PixelRange source_pixels(std::int64_t begin, std::int64_t n) const;
    // Copies windows [begin, begin + n) to rows of steps() elements.
    void copy(std::int64_t begin, std::int64_t n, char* to) const;
};

// The windows of a convolution's input.
Windows windows_of_input(const kernels::ConvGeometry& geometry, Size2d kernel_size);

// A phase of an input gradient: its pixels that the same taps of the weight reach from the result's gradient,
// those at (begin.height + i * stride.height, begin.width + j * stride.width). Their windows lie in that
// gradient; a phase may have no tap, then its pixels are zero. Rows, columns and taps are set.
struct Phase {
    Size2d begin;
    Windows windows;
};
std::vector<Phase> phases_of_gradient(const kernels::ConvGeometry& geometry, Size2d kernel_size,
                                      Size2d image);

}  // namespace mezzo::cpu
