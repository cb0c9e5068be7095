// The operations of RandAugment.
#pragma once

#include "data/pixels.h"

namespace mezzo::data {

enum class Operation : int {
    identity,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    rotate,
    brightness,
    color,
    contrast,
    sharpness,
    posterize,
    solarize,
    autocontrast,
    equalize,
};
constexpr int operations = 14;

// `m` in the operation's own unit: a slope, pixels, degrees, what is added to a factor of 1, bits, a byte.
// Pixels from outside the image are of the colour.
Pixels applied(const Pixels& image, Operation operation, double m, const std::vector<std::uint8_t>& color);

}  // namespace mezzo::data
