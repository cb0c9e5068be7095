// Images that the tests share with tools/reference_images.py.
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/data/loader.h"
#include "mezzo/ops.h"

namespace mezzo::test {

// uint8 [height, width, channels]; the same as image() of the tool.
inline Tensor test_image(std::int64_t height, std::int64_t width, std::int64_t channels) {
    std::vector<std::uint8_t> bytes;
    for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x)
            for (std::int64_t c = 0; c < channels; ++c)
                bytes.push_back(
                    std::uint8_t(x * 7 + y * 13 + c * 29 + x * y % 17 * 5 + ((x / 3) ^ (y / 2)) * 11));
    return Tensor::from(bytes, {height, width, channels});
}

// n images of size by size that differ.
inline data::Dataset some_images(std::int64_t n, std::int64_t size) {
    Tensors images;
    for (std::int64_t i = 0; i < n; ++i)
        images.push_back(test_image(size + i, size + i, 3).slice(0, i, i + size).slice(1, i, i + size));
    return {stack(images), arange(n)};
}

// FNV-1a of the bytes, row by row.
inline std::uint64_t checksum(const Tensor& image) {
    std::uint64_t value = 0xcbf29ce484222325;
    for (const std::uint8_t byte : image.to_vector<std::uint8_t>()) value = (value ^ byte) * 0x100000001b3;
    return value;
}

}  // namespace mezzo::test
