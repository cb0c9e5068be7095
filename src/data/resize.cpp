// Resamples bytes as PIL's Image.resize(BILINEAR): columns, then rows, each with the weights of a triangle as
// wide as one pixel of the larger grid, in fixed point.
#include <algorithm>
#include <cmath>

#include "core/memory/memory_error.h"
#include "data/pixels.h"

namespace mezzo::data {

namespace {

constexpr int precision = 32 - 8 - 2;  // fractional bits: 8 for the byte, 2 for the sum

// Result i is the sum of weights[i * most + k] * input[first[i] + k] over k < count[i].
struct Weights {
    std::int64_t most = 0;
    std::vector<std::int64_t> first, count;
    std::vector<std::int32_t> weights;
};

Weights weights_of(std::int64_t in, std::int64_t out) {
    const double scale = double(in) / double(out), wide = std::max(scale, 1.0);
    Weights w;
    w.most = std::int64_t(std::ceil(wide)) * 2 + 1;
    w.weights.resize(std::size_t(out * w.most));
    std::vector<double> exact;
    for (std::int64_t i = 0; i < out; ++i) {
        const double center = (double(i) + 0.5) * scale;
        const std::int64_t first = std::max(std::int64_t(center - wide + 0.5), std::int64_t(0));
        const std::int64_t count = std::min(std::int64_t(center + wide + 0.5), in) - first;
        exact.clear();
        double total = 0;
        for (std::int64_t k = 0; k < count; ++k) {
            const double distance = std::abs((double(k + first) - center + 0.5) * (1 / wide));
            exact.push_back(std::max(1 - distance, 0.0));
            total += exact.back();
        }
        for (std::int64_t k = 0; k < count; ++k)
            w.weights[std::size_t(i * w.most + k)] =
                std::int32_t(0.5 + exact[std::size_t(k)] / total * (1 << precision));
        w.first.push_back(first);
        w.count.push_back(count);
    }
    return w;
}

// Resizes the columns of one row, for a number of channels that is known at compile time.
template <int channels> void resize_row(const std::uint8_t* from, std::uint8_t* to, const Weights& w) {
    for (std::size_t i = 0; i < w.first.size(); ++i) {
        std::int32_t sums[channels];
        std::fill(sums, sums + channels, 1 << (precision - 1));
        const std::uint8_t* pixel = from + w.first[i] * channels;
        const std::int32_t* const weights = &w.weights[i * std::size_t(w.most)];
        for (std::int64_t k = 0; k < w.count[i]; ++k, pixel += channels)
            for (int c = 0; c < channels; ++c) sums[c] += pixel[c] * weights[k];
        for (int c = 0; c < channels; ++c) *to++ = clip8(sums[c] >> precision);
    }
}

void resize_row(const std::uint8_t* from, std::uint8_t* to, const Weights& w, std::int64_t channels) {
    for (std::size_t i = 0; i < w.first.size(); ++i)
        for (std::int64_t c = 0; c < channels; ++c) {
            std::int32_t sum = 1 << (precision - 1);
            for (std::int64_t k = 0; k < w.count[i]; ++k)
                sum += from[(w.first[i] + k) * channels + c] *
                       w.weights[i * std::size_t(w.most) + std::size_t(k)];
            *to++ = clip8(sum >> precision);
        }
}

Pixels resized_columns(const Pixels& image, std::int64_t width) {
    const Weights w = weights_of(image.width, width);
    Pixels result = new_pixels(image.height, width, image.channels);
    for (std::int64_t y = 0; y < image.height; ++y) {
        const std::uint8_t* const from = image.at(y, 0);
        std::uint8_t* const to = result.at(y, 0);
        if (image.channels == 3)
            resize_row<3>(from, to, w);
        else if (image.channels == 1)
            resize_row<1>(from, to, w);
        else
            resize_row(from, to, w, image.channels);
    }
    return result;
}

Pixels resized_rows(const Pixels& image, std::int64_t height) {
    const Weights w = weights_of(image.height, height);
    Pixels result = new_pixels(height, image.width, image.channels);
    const auto bytes = std::size_t(image.width * image.channels);
    std::vector<std::int32_t> sums(bytes);
    for (std::int64_t y = 0; y < height; ++y) {
        const auto i = std::size_t(y);
        std::fill(sums.begin(), sums.end(), 1 << (precision - 1));
        for (std::int64_t k = 0; k < w.count[i]; ++k) {
            const std::uint8_t* const from = image.at(w.first[i] + k, 0);
            const std::int32_t weight = w.weights[i * std::size_t(w.most) + std::size_t(k)];
            for (std::size_t x = 0; x < bytes; ++x) sums[x] += from[x] * weight;
        }
        std::uint8_t* const to = result.at(y, 0);
        for (std::size_t x = 0; x < bytes; ++x) to[x] = clip8(sums[x] >> precision);
    }
    return result;
}

}  // namespace

Pixels resized(const Pixels& image, std::int64_t height, std::int64_t width) {
    const auto result = [&] {
        const Pixels wide = width == image.width ? image : resized_columns(image, width);
        return height == image.height ? wide : resized_rows(wide, height);
    };
    return or_memory_error("Resize", result, "for ", height, " by ", width, " pixels");
}

}  // namespace mezzo::data
