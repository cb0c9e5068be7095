// Colour operations on images of 1 or 3 channels, bit-identical to PIL's ImageEnhance, ImageOps and
// ImageFilter. A factor of 1 leaves the image unchanged.
#pragma once

#include "data/pixels.h"

namespace mezzo::data {

// Throws Error(shape), in the name of `op`, for other numbers of channels.
void check_colors(const char* op, const Pixels& image);

Pixels with_brightness(const Pixels& image, double factor);
Pixels with_contrast(const Pixels& image, double factor);
Pixels with_saturation(const Pixels& image, double factor);
Pixels with_sharpness(const Pixels& image, double factor);
Pixels with_hue(const Pixels& image, double turn);  // -0.5 to 0.5 of the circle
Pixels posterized(const Pixels& image, int bits);   // keeps the highest bits
Pixels solarized(const Pixels& image, double threshold);
Pixels autocontrasted(const Pixels& image);
Pixels equalized(const Pixels& image);

// PIL's conversion of RGB to grey.
inline std::uint8_t gray_of(int red, int green, int blue) {
    return std::uint8_t((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

}  // namespace mezzo::data
