// Transforms that change colours: ColorJitter, and RandAugment, which also moves pixels.
#include "data/augment.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "data/color.h"

namespace mezzo::data {

namespace {

// Maps pixel (x, y) of the result to its source: (a x + b y + c, d x + e y + f), where x and y are pixel
// centres.
struct Affine {
    double a, b, c, d, e, f;
};

// Samples the nearest pixels, in fixed point with 16 fractional bits, as PIL.
Pixels moved(const Pixels& image, const Affine& m, const std::vector<std::uint8_t>& color) {
    const auto fixed = [](double v) { return std::int64_t(std::floor(v * 65536 + 0.5)); };
    Pixels result = new_pixels(image.height, image.width, image.channels);
    fill(result, 0, 0, image.height, image.width, color);
    std::int64_t row_x = fixed(m.c + m.a * 0.5 + m.b * 0.5), row_y = fixed(m.f + m.d * 0.5 + m.e * 0.5);
    const std::int64_t a = fixed(m.a), b = fixed(m.b), d = fixed(m.d), e = fixed(m.e);
    for (std::int64_t y = 0; y < image.height; ++y, row_x += b, row_y += e) {
        std::int64_t from_x = row_x, from_y = row_y;
        for (std::int64_t x = 0; x < image.width; ++x, from_x += a, from_y += d) {
            const std::int64_t i = from_y >> 16, j = from_x >> 16;
            if (i < 0 || i >= image.height || j < 0 || j >= image.width) continue;
            std::copy_n(image.at(i, j), image.channels, result.at(y, x));
        }
    }
    return result;
}

// Counterclockwise rotation around the centre.
Affine rotation(const Pixels& image, double degrees) {
    const double angle = -degrees * std::numbers::pi / 180, cosine = std::cos(angle), sine = std::sin(angle);
    const double x = double(image.width) / 2, y = double(image.height) / 2;
    return {cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y};
}

// Returns `share` (0 to 1) of an operation's largest magnitude, in the operation's unit.
double magnitude_of(Operation operation, const Pixels& image, double share) {
    switch (operation) {
        case Operation::shear_x:
        case Operation::shear_y:
            return 0.3 * share;
        case Operation::translate_x:
            return 150.0 / 331.0 * double(image.width) * share;
        case Operation::translate_y:
            return 150.0 / 331.0 * double(image.height) * share;
        case Operation::rotate:
            return 30 * share;
        case Operation::brightness:
        case Operation::color:
        case Operation::contrast:
        case Operation::sharpness:
            return 0.9 * share;
        case Operation::posterize:
            return 8 - std::nearbyint(4 * share);
        case Operation::solarize:
            return 255 - 255 * share;
        default:
            return 0;
    }
}

bool has_sign(Operation operation) {
    return operation >= Operation::shear_x && operation <= Operation::sharpness;
}

void check_strength(const char* what, double value, double most) {
    check(value >= 0 && value <= most, ErrorKind::value, "ColorJitter: ", what, " is ", value,
          "; it must be in 0 to ", most);
}

}  // namespace

Pixels applied(const Pixels& image, Operation operation, double m, const std::vector<std::uint8_t>& color) {
    switch (operation) {
        case Operation::shear_x:
            return moved(image, {1, m, 0, 0, 1, 0}, color);
        case Operation::shear_y:
            return moved(image, {1, 0, 0, m, 1, 0}, color);
        case Operation::translate_x:
            return moved(image, {1, 0, -std::trunc(m), 0, 1, 0}, color);
        case Operation::translate_y:
            return moved(image, {1, 0, 0, 0, 1, -std::trunc(m)}, color);
        case Operation::rotate:
            return moved(image, rotation(image, m), color);
        case Operation::brightness:
            return with_brightness(image, 1 + m);
        case Operation::color:
            return with_saturation(image, 1 + m);
        case Operation::contrast:
            return with_contrast(image, 1 + m);
        case Operation::sharpness:
            return with_sharpness(image, 1 + m);
        case Operation::posterize:
            return posterized(image, int(m));
        case Operation::solarize:
            return solarized(image, m);
        case Operation::autocontrast:
            return autocontrasted(image);
        case Operation::equalize:
            return equalized(image);
        default:
            return image;
    }
}

Tensor ColorJitter::operator()(const Tensor& image, TransformRandom& random) const {
    Pixels pixels = pixels_of("ColorJitter", image);
    check_colors("ColorJitter", pixels);
    check_strength("brightness", brightness, 1e6);
    check_strength("contrast", contrast, 1e6);
    check_strength("saturation", saturation, 1e6);
    check_strength("hue", hue, 0.5);
    const double strengths[] = {brightness, contrast, saturation};
    int order[] = {0, 1, 2, 3};
    for (int i = 3; i > 0; --i) std::swap(order[i], order[random.integer(0, i + 1)]);
    for (const int step : order) {
        if (step == 3) {
            if (hue > 0) pixels = with_hue(pixels, random.uniform(-hue, hue));
            continue;
        }
        const double strength = strengths[step];
        if (strength == 0) continue;
        const double factor = random.uniform(std::max(1 - strength, 0.0), 1 + strength);
        pixels = step == 0   ? with_brightness(pixels, factor)
                 : step == 1 ? with_contrast(pixels, factor)
                             : with_saturation(pixels, factor);
    }
    return pixels.image;
}

Tensor RandAugment::operator()(const Tensor& image, TransformRandom& random) const {
    Pixels pixels = pixels_of("RandAugment", image);
    check_colors("RandAugment", pixels);
    check(num_ops >= 0, ErrorKind::value, "RandAugment: num_ops is ", num_ops);
    check(num_magnitude_bins >= 2 && magnitude >= 0 && magnitude < num_magnitude_bins, ErrorKind::value,
          "RandAugment: magnitude ", magnitude, " is not below num_magnitude_bins, ", num_magnitude_bins);
    const std::vector<std::uint8_t> color = color_of("RandAugment", fill, pixels.channels);
    for (int i = 0; i < num_ops; ++i) {
        const auto operation = Operation(random.integer(0, operations));
        double strength = magnitude_of(operation, pixels, double(magnitude) / double(num_magnitude_bins - 1));
        if (has_sign(operation) && random.chance(0.5)) strength = -strength;
        pixels = applied(pixels, operation, strength, color);
    }
    return pixels.image;
}

}  // namespace mezzo::data
