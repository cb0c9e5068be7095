#include "data/pixels.h"

#include <algorithm>
#include <cstring>

namespace mezzo::data {

Pixels pixels_of(const char* op, const Tensor& image) {
    check(image.defined(), ErrorKind::value, op, ": the image is undefined");
    check(image.device() == cpu_device, ErrorKind::device, op, ": the image is on ", image.device(),
          "; images are transformed on the CPU");
    check(image.dtype() == uint8, ErrorKind::dtype, op, ": the image is ", image.dtype(),
          "; transforms work on uint8, before values become numbers");
    check(image.dim() == 3, ErrorKind::shape, op, ": image ", image.shape(),
          " is not [height, width, channels]",
          image.dim() == 2 ? "; unsqueeze(-1) makes one channel of it" : "");
    check(image.size(0) <= max_side && image.size(1) <= max_side, ErrorKind::shape, op, ": image ",
          image.shape(), " has more than ", max_side, " pixels in a side");
    check(image.numel() > 0, ErrorKind::shape, op, ": image ", image.shape(), " has no pixels");
    return {image.contiguous(), image.size(0), image.size(1), image.size(2)};
}

Pixels new_pixels(std::int64_t height, std::int64_t width, std::int64_t channels) {
    return {empty({height, width, channels}, {.dtype = uint8}), height, width, channels};
}

ImageSize square(const char* op, const ImageSize& size) {
    const ImageSize result(size.height, size.width == 0 ? size.height : size.width);
    check(result.height > 0 && result.width > 0 && result.height <= max_side && result.width <= max_side,
          ErrorKind::value, op, ": size is ", size.height, " by ", result.width, "; both must be in 1 ... ",
          max_side);
    return result;
}

std::vector<std::uint8_t> color_of(const char* op, const PerChannel& color, std::int64_t channels) {
    check(color.fits(channels), ErrorKind::value, op, ": ", color.values().size(),
          " values of a colour, the image has ", channels, " channels");
    for (const double value : color.values())
        check(value >= 0 && value <= 255, ErrorKind::value, op, ": colour ", value,
              " is outside of 0 to 255");
    std::vector<std::uint8_t> bytes;
    for (std::int64_t c = 0; c < channels; ++c) bytes.push_back(std::uint8_t(color[c]));
    return bytes;
}

void fill(const Pixels& image, std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width,
          const std::vector<std::uint8_t>& color) {
    const bool plain = std::equal(color.begin() + 1, color.end(), color.begin());
    for (std::int64_t row = y; row < y + height && width > 0; ++row) {
        std::uint8_t* const to = image.at(row, x);
        if (plain)
            std::memset(to, color[0], std::size_t(width * image.channels));
        else
            for (std::int64_t i = 0; i < width; ++i)
                std::copy(color.begin(), color.end(), to + i * image.channels);
    }
}

Pixels window(const Pixels& image, std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width,
              const std::vector<std::uint8_t>& color) {
    Pixels result = new_pixels(height, width, image.channels);
    // The part of the window inside the image.
    const std::int64_t top = std::clamp(-y, std::int64_t(0), height);
    const std::int64_t bottom = std::clamp(image.height - y, top, height);
    const std::int64_t left = std::clamp(-x, std::int64_t(0), width);
    const std::int64_t right = std::clamp(image.width - x, left, width);
    fill(result, 0, 0, top, width, color);
    fill(result, bottom, 0, height - bottom, width, color);
    fill(result, top, 0, bottom - top, left, color);
    fill(result, top, right, bottom - top, width - right, color);
    for (std::int64_t row = top; row < bottom && right > left; ++row)
        std::memcpy(result.at(row, left), image.at(y + row, x + left),
                    std::size_t((right - left) * image.channels));
    return result;
}

}  // namespace mezzo::data
