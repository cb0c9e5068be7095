#include "data/color.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mezzo::data {

namespace {

using Table = std::array<std::uint8_t, 256>;
using Histogram = std::array<std::int64_t, 256>;

Pixels same_size(const Pixels& image) { return new_pixels(image.height, image.width, image.channels); }

// Replaces each byte by its entry in its channel's table.
Pixels looked_up(const Pixels& image, const std::vector<Table>& tables) {
    Pixels result = same_size(image);
    const std::uint8_t* const from = image.at(0, 0);
    std::uint8_t* const to = result.at(0, 0);
    const std::int64_t step = std::int64_t(tables.size());  // 1: one table for all channels
    for (std::int64_t c = 0; c < step; ++c) {
        const Table& table = tables[std::size_t(c)];
        for (std::int64_t i = c; i < image.count(); i += step) to[i] = table[from[i]];
    }
    return result;
}

template <class F> Pixels mapped(const Pixels& image, const F& f) {
    std::vector<Table> tables(1);
    for (int v = 0; v < 256; ++v) tables[0][std::size_t(v)] = std::uint8_t(f(v));
    return looked_up(image, tables);
}

// Linear interpolation from a to b; a factor outside of [0, 1] extrapolates.
std::uint8_t blend(int a, int b, float factor) {
    const float value = float(a) + factor * float(b - a);
    return std::uint8_t(value <= 0 ? 0 : value >= 255 ? 255 : value);
}

// Returns the grey value of pixel i.
std::uint8_t gray_at(const Pixels& image, std::int64_t i) {
    const std::uint8_t* const p = image.at(0, 0) + i * image.channels;
    return image.channels == 1 ? p[0] : gray_of(p[0], p[1], p[2]);
}

Histogram histogram(const Pixels& image, std::int64_t channel) {
    Histogram counts{};
    const std::uint8_t* const from = image.at(0, 0);
    for (std::int64_t i = channel; i < image.count(); i += image.channels) ++counts[from[i]];
    return counts;
}

// Applies a table to each channel, made from the channel's histogram.
template <class F> Pixels by_histogram(const Pixels& image, const F& f) {
    std::vector<Table> tables;
    for (std::int64_t c = 0; c < image.channels; ++c) tables.push_back(f(histogram(image, c)));
    return looked_up(image, tables);
}

Table unchanged() {
    Table table;
    for (int v = 0; v < 256; ++v) table[std::size_t(v)] = std::uint8_t(v);
    return table;
}

Table stretch(const Histogram& counts) {
    int low = 0, high = 255;
    while (low < 255 && counts[std::size_t(low)] == 0) ++low;
    while (high > 0 && counts[std::size_t(high)] == 0) --high;
    if (high <= low) return unchanged();
    const double scale = 255.0 / (high - low), offset = -low * scale;
    Table table;
    for (int v = 0; v < 256; ++v) table[std::size_t(v)] = clip8(int(v * scale + offset));
    return table;
}

Table flatten(const Histogram& counts) {
    std::int64_t total = 0, last = 0;
    int different = 0;
    for (const std::int64_t count : counts)
        if (count != 0) {
            total += count;
            last = count;
            ++different;
        }
    const std::int64_t step = (total - last) / 255;
    if (different <= 1 || step == 0) return unchanged();
    Table table;
    std::int64_t below = step / 2;
    for (std::size_t v = 0; v < 256; ++v) {
        table[v] = std::uint8_t(std::min(below / step, std::int64_t(255)));
        below += counts[v];
    }
    return table;
}

// Hue, saturation and value as bytes, following Python's colorsys.
struct Hsv {
    int hue, saturation, value;
};
Hsv hsv_of(int r, int g, int b) {
    const int high = std::max({r, g, b}), low = std::min({r, g, b});
    if (high == low) return {0, 0, high};
    const auto range = float(high - low);
    const float rc = float(high - r) / range, gc = float(high - g) / range, bc = float(high - b) / range;
    // The sums are formed in float64 and rounded, as in PIL.
    float h = r == high   ? bc - gc
              : g == high ? float(2.0 + double(rc) - double(bc))
                          : float(4.0 + double(gc) - double(rc));
    h = float(std::fmod(double(h) / 6.0 + 1.0, 1.0));
    return {clip8(int(double(h) * 255.0)), clip8(int(double(range / float(high)) * 255.0)), high};
}
void write_rgb(const Hsv& from, std::uint8_t* to) {
    const int v = from.value;
    if (from.saturation == 0) {
        std::fill(to, to + 3, std::uint8_t(v));
        return;
    }
    const double turned = double(float(from.hue) * 6.0 / 255.0);
    const int sector = int(std::floor(turned));
    const auto f = float(turned - double(float(sector))), s = float(double(from.saturation) / 255.0);
    const auto byte = [v](double share) { return clip8(int(std::round(double(v) * share))); };
    const std::uint8_t p = byte(1.0 - double(s)), q = byte(1.0 - double(s * f)),
                       t = byte(1.0 - double(s) * (1.0 - double(f))), high = std::uint8_t(v);
    const std::uint8_t colors[6][3] = {{high, t, p}, {q, high, p}, {p, high, t},
                                       {p, q, high}, {t, p, high}, {high, p, q}};
    std::copy_n(colors[sector % 6], 3, to);
}

// (sum of a pixel and its neighbours, the pixel itself five times) / 13.
std::uint8_t smooth_at(const Pixels& image, std::int64_t y, std::int64_t x, std::int64_t c) {
    int sum = 4 * image.at(y, x)[c];
    for (std::int64_t i = y - 1; i <= y + 1; ++i)
        for (std::int64_t j = x - 1; j <= x + 1; ++j) sum += image.at(i, j)[c];
    return std::uint8_t((2 * sum + 13) / 26);
}

}  // namespace

void check_colors(const char* op, const Pixels& image) {
    check(image.channels == 1 || image.channels == 3, ErrorKind::shape, op, ": the image has ",
          image.channels, " channels; colours are defined for 1 and 3");
}

Pixels with_brightness(const Pixels& image, double factor) {
    return mapped(image, [&](int v) { return blend(0, v, float(factor)); });
}

Pixels with_contrast(const Pixels& image, double factor) {
    const std::int64_t pixels = image.height * image.width;
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < pixels; ++i) sum += gray_at(image, i);
    const int mean = int(double(sum) / double(pixels) + 0.5);
    return mapped(image, [&](int v) { return blend(mean, v, float(factor)); });
}

Pixels with_saturation(const Pixels& image, double factor) {
    if (image.channels == 1) return image;
    Pixels result = same_size(image);
    const std::uint8_t* const from = image.at(0, 0);
    std::uint8_t* const to = result.at(0, 0);
    for (std::int64_t i = 0; i < image.height * image.width; ++i) {
        const int gray = gray_at(image, i);
        for (std::int64_t c = 3 * i; c < 3 * i + 3; ++c) to[c] = blend(gray, from[c], float(factor));
    }
    return result;
}

// PIL does not change the pixels at the border, and so no pixel of an image that is all border.
Pixels with_sharpness(const Pixels& image, double factor) {
    Pixels result{image.image.clone(), image.height, image.width, image.channels};
    for (std::int64_t y = 1; y + 1 < image.height; ++y)
        for (std::int64_t x = 1; x + 1 < image.width; ++x)
            for (std::int64_t c = 0; c < image.channels; ++c)
                result.at(y, x)[c] = blend(smooth_at(image, y, x, c), image.at(y, x)[c], float(factor));
    return result;
}

Pixels with_hue(const Pixels& image, double turn) {
    if (image.channels == 1) return image;
    Pixels result = same_size(image);
    const int shift = int(turn * 255);  // as a byte, the sum of hues wraps around
    for (std::int64_t y = 0; y < image.height; ++y)
        for (std::int64_t x = 0; x < image.width; ++x) {
            const std::uint8_t* const p = image.at(y, x);
            Hsv color = hsv_of(p[0], p[1], p[2]);
            color.hue = (color.hue + shift) & 255;
            write_rgb(color, result.at(y, x));
        }
    return result;
}

Pixels posterized(const Pixels& image, int bits) {
    const int mask = 255 & ~((1 << (8 - bits)) - 1);
    return mapped(image, [&](int v) { return v & mask; });
}

Pixels solarized(const Pixels& image, double threshold) {
    return mapped(image, [&](int v) { return v < threshold ? v : 255 - v; });
}

Pixels autocontrasted(const Pixels& image) { return by_histogram(image, stretch); }

Pixels equalized(const Pixels& image) { return by_histogram(image, flatten); }

}  // namespace mezzo::data
