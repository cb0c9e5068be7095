// Transforms that move pixels: crops, flips, resizing, erasing.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/pixels.h"

namespace mezzo::data {

namespace {

void check_probability(const char* op, double p) {
    check(p >= 0 && p <= 1, ErrorKind::value, op, ": p is ", p, "; it must be in [0, 1]");
}

void check_range(const char* op, const char* what, const Interval& range) {
    check(range.low > 0 && range.low <= range.high && std::isfinite(range.high), ErrorKind::value, op, ": ",
          what, " is ", range.low, " to ", range.high, "; it must be positive and ascending");
}

struct Rectangle {
    std::int64_t y, x, height, width;
};

// Returns a rectangle of random area and aspect ratio (width / height) inside height by width; its height is
// 0 if ten tries failed. `whole`: it may be as large as the image.
Rectangle random_rectangle(TransformRandom& random, std::int64_t height, std::int64_t width,
                           const Interval& scale, const Interval& ratio, bool whole) {
    const double area = double(height) * double(width);
    for (int i = 0; i < 10; ++i) {
        const double share = area * random.uniform(scale.low, scale.high);
        const double proportion = std::exp(random.uniform(std::log(ratio.low), std::log(ratio.high)));
        // Compared as doubles, since they may be too large for an integer, infinite or NaN.
        const double columns = std::nearbyint(std::sqrt(share * proportion));
        const double rows = std::nearbyint(std::sqrt(share / proportion));
        const double most = whole ? 0 : 1;
        const bool fits = columns <= double(width) - most && rows <= double(height) - most;
        if (!fits || columns <= 0 || rows <= 0) continue;
        const auto w = std::int64_t(columns), h = std::int64_t(rows);
        const std::int64_t y = random.integer(0, height - h + 1), x = random.integer(0, width - w + 1);
        return {y, x, h, w};
    }
    return {0, 0, 0, 0};
}

Rectangle central_rectangle(std::int64_t height, std::int64_t width, const Interval& ratio) {
    const double proportion = double(width) / double(height);
    std::int64_t h = height, w = width;
    if (proportion < ratio.low) h = std::int64_t(std::nearbyint(double(width) / ratio.low));
    if (proportion > ratio.high) w = std::int64_t(std::nearbyint(double(height) * ratio.high));
    h = std::clamp(h, std::int64_t(1), height);
    w = std::clamp(w, std::int64_t(1), width);
    return {(height - h) / 2, (width - w) / 2, h, w};
}

}  // namespace

Tensor RandomCrop::operator()(const Tensor& image, TransformRandom& random) const {
    const Pixels from = pixels_of("RandomCrop", image);
    const ImageSize to = square("RandomCrop", size);
    check(padding >= 0 && padding <= 1 << 24, ErrorKind::value, "RandomCrop: padding is ", padding,
          "; it must be in 0 to 2^24");
    const std::vector<std::uint8_t> color = color_of("RandomCrop", fill, from.channels);
    // Padding of each side.
    std::int64_t rows = padding, columns = padding;
    if (pad_if_needed) {
        columns += std::max(to.width - (from.width + 2 * columns), std::int64_t(0));
        rows += std::max(to.height - (from.height + 2 * rows), std::int64_t(0));
    }
    const std::int64_t height = from.height + 2 * rows, width = from.width + 2 * columns;
    check(to.height <= height && to.width <= width, ErrorKind::shape, "RandomCrop: image ", image.shape(),
          " with padding ", padding, " is smaller than the crop, ", to.height, " by ", to.width,
          "; set pad_if_needed, or resize it before");
    const std::int64_t y = random.integer(0, height - to.height + 1) - rows;
    const std::int64_t x = random.integer(0, width - to.width + 1) - columns;
    return window(from, y, x, to.height, to.width, color).image;
}

Tensor CenterCrop::operator()(const Tensor& image) const {
    const Pixels from = pixels_of("CenterCrop", image);
    const ImageSize to = square("CenterCrop", size);
    // Half a pixel is rounded to even; the smaller part of odd padding comes first.
    const auto corner = [](std::int64_t have, std::int64_t want) {
        return have >= want ? std::int64_t(std::nearbyint(double(have - want) / 2)) : -((want - have) / 2);
    };
    return window(from, corner(from.height, to.height), corner(from.width, to.width), to.height, to.width,
                  color_of("CenterCrop", 0, from.channels))
        .image;
}

Tensor RandomHorizontalFlip::operator()(const Tensor& image, TransformRandom& random) const {
    check_probability("RandomHorizontalFlip", p);
    const Pixels from = pixels_of("RandomHorizontalFlip", image);
    if (!random.chance(p)) return image;
    const Pixels to = new_pixels(from.height, from.width, from.channels);
    const auto channels = std::size_t(from.channels);
    for (std::int64_t y = 0; y < from.height; ++y) {
        const std::uint8_t* pixel = from.at(y, from.width - 1);
        std::uint8_t* out = to.at(y, 0);
        for (std::int64_t x = 0; x < from.width; ++x, pixel -= channels, out += channels)
            if (channels == 3) {  // a size that the compiler knows
                out[0] = pixel[0], out[1] = pixel[1], out[2] = pixel[2];
            } else {
                std::memcpy(out, pixel, channels);
            }
    }
    return to.image;
}

Tensor Resize::operator()(const Tensor& image) const {
    const Pixels from = pixels_of("Resize", image);
    check(size.height > 0 && size.width >= 0, ErrorKind::value, "Resize: size is ", size.height, " by ",
          size.width, "; it must be positive");
    std::int64_t height = size.height, width = size.width;
    if (width == 0) {  // the shorter side
        const std::int64_t side = size.height, shorter = std::min(from.height, from.width);
        check(side <= max_side, ErrorKind::value, "Resize: size is ", side, "; a side has at most ", max_side,
              " pixels");
        height = from.height == shorter ? side : std::int64_t(double(side * from.height) / double(shorter));
        width = from.width == shorter ? side : std::int64_t(double(side * from.width) / double(shorter));
    }
    check(height <= max_side && width <= max_side, ErrorKind::value, "Resize: the result is ", height, " by ",
          width, "; a side has at most ", max_side, " pixels");
    return resized(from, height, width).image;
}

Tensor RandomResizedCrop::operator()(const Tensor& image, TransformRandom& random) const {
    const Pixels from = pixels_of("RandomResizedCrop", image);
    const ImageSize to = square("RandomResizedCrop", size);
    check_range("RandomResizedCrop", "scale", scale);
    check_range("RandomResizedCrop", "ratio", ratio);
    Rectangle part = random_rectangle(random, from.height, from.width, scale, ratio, true);
    if (part.height == 0) part = central_rectangle(from.height, from.width, ratio);
    const Pixels cut = window(from, part.y, part.x, part.height, part.width,
                              std::vector<std::uint8_t>(std::size_t(from.channels)));
    return resized(cut, to.height, to.width).image;
}

Tensor RandomErasing::operator()(const Tensor& image, TransformRandom& random) const {
    const Pixels from = pixels_of("RandomErasing", image);
    check_probability("RandomErasing", p);
    check_range("RandomErasing", "scale", scale);
    check_range("RandomErasing", "ratio", ratio);
    const std::vector<std::uint8_t> color = color_of("RandomErasing", value, from.channels);
    if (!random.chance(p)) return image;
    const Interval width_by_height{1 / ratio.high, 1 / ratio.low};
    const Rectangle part = random_rectangle(random, from.height, from.width, scale, width_by_height, false);
    if (part.height == 0) return image;
    const Pixels to{from.image.clone(), from.height, from.width, from.channels};
    fill(to, part.y, part.x, part.height, part.width, color);
    return to.image;
}

}  // namespace mezzo::data
