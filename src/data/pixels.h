// Images as bytes, and operations that transforms share.
#pragma once

#include "core/tensor_impl.h"
#include "mezzo/data/transforms.h"

namespace mezzo::data {

// The bytes of an image, row by row, and its sizes. Owns a reference to the memory.
struct Pixels {
    Tensor image;
    std::int64_t height, width, channels;
    std::uint8_t* at(std::int64_t y, std::int64_t x) const {
        return static_cast<std::uint8_t*>(raw(image)) + (y * width + x) * channels;
    }
    std::int64_t count() const { return height * width * channels; }
};

// Largest side in pixels. Sums of a few sides and products of two of them fit into 64 bits.
constexpr std::int64_t max_side = INT32_MAX;

// Returns the image's bytes. Throws, in the name of `op`, unless it is uint8 [height, width, channels] on the
// CPU with no size 0. Copies it unless it is contiguous.
Pixels pixels_of(const char* op, const Tensor& image);
Pixels new_pixels(std::int64_t height, std::int64_t width, std::int64_t channels);

// Returns an ImageSize as height and width; a single number is both. Throws Error(value) unless both are from
// 1 to max_side.
ImageSize square(const char* op, const ImageSize& size);

// Returns the bytes of a colour with values from 0 to 255. Throws Error(value) for other values, and unless
// there is one value or one per channel.
std::vector<std::uint8_t> color_of(const char* op, const PerChannel& color, std::int64_t channels);
// Colours a rectangle inside the image.
void fill(const Pixels& image, std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width,
          const std::vector<std::uint8_t>& color);

// Returns the window of `height` by `width` pixels with its corner at (y, x). Parts outside the image get the
// colour.
Pixels window(const Pixels& image, std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width,
              const std::vector<std::uint8_t>& color);

// Resizes by bilinear filtering with antialiasing, bit-identical to PIL. Throws Error(memory).
Pixels resized(const Pixels& image, std::int64_t height, std::int64_t width);

inline std::uint8_t clip8(int value) { return std::uint8_t(value < 0 ? 0 : value > 255 ? 255 : value); }

}  // namespace mezzo::data
