// What transforms share: images as bytes.
#pragma once

#include "core/tensor_impl.h"
#include "mezzo/transforms.h"

namespace mezzo::data {

// The bytes of an image, row by row, and its sizes. Holds the memory.
struct Pixels {
    Tensor image;
    std::int64_t height, width, channels;
    std::uint8_t* at(std::int64_t y, std::int64_t x) const {
        return static_cast<std::uint8_t*>(raw(image)) + (y * width + x) * channels;
    }
    std::int64_t count() const { return height * width * channels; }
};

// Pixels of a side. Sums of a few sides and products of two of them fit 64 bits.
constexpr std::int64_t max_side = INT32_MAX;

// Throws, in the name of op, unless it is uint8 [height, width, channels] on the CPU with no size 0. Copies
// unless contiguous.
Pixels pixels_of(const char* op, const Tensor& image);
Pixels new_pixels(std::int64_t height, std::int64_t width, std::int64_t channels);

// An ImageSize as height and width, one number being both. Throws Error(value) unless both are in 1 ... max_side.
ImageSize square(const char* op, const ImageSize& size);

// The bytes of a colour given from 0 to 255. Throws Error(value) for others, and where there is neither one
// value nor one per channel.
std::vector<std::uint8_t> color_of(const char* op, const PerChannel& color, std::int64_t channels);
// Colours a rectangle that lies within the image.
void fill(const Pixels& image, std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width,
          const std::vector<std::uint8_t>& color);

// The window of `height` by `width` pixels whose corner is at (y, x), which may lie outside of the image;
// what does is of the colour.
Pixels window(const Pixels& image, std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width,
              const std::vector<std::uint8_t>& color);

// Bilinear with antialias, bit for bit as PIL. Throws Error(memory).
Pixels resized(const Pixels& image, std::int64_t height, std::int64_t width);

inline std::uint8_t clip8(int value) { return std::uint8_t(value < 0 ? 0 : value > 255 ? 255 : value); }

}  // namespace mezzo::data
