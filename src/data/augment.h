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

// Applies an operation. `m` is in the operation's own unit: a slope, pixels, degrees, an offset to a factor
// of 1, bits, a byte. Pixels from outside the image get the colour.
Pixels applied(const Pixels& image, Operation operation, double m, const std::vector<std::uint8_t>& color);

}  // namespace mezzo::data
