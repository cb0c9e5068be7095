// Reads the orientation of a photograph (EXIF 2.3, tag 0x0112), and turns it upright.
#include <algorithm>

#include "data/image_codec.h"

namespace mezzo::data {

namespace {

// Reads numbers of 2 or 4 bytes in the byte order of the header; 0 beyond the end.
struct Tiff {
    std::span<const unsigned char> bytes;
    bool little;
    std::uint32_t number(std::size_t at, std::size_t size) const {
        if (at > bytes.size() || size > bytes.size() - at) return 0;
        std::uint32_t value = 0;
        for (std::size_t i = 0; i < size; ++i) value = value << 8 | bytes[at + (little ? size - 1 - i : i)];
        return value;
    }
};

}  // namespace

int exif_orientation(std::span<const unsigned char> exif) {
    if (exif.size() < 8 || exif[0] != exif[1] || (exif[0] != 'I' && exif[0] != 'M')) return 1;
    const Tiff tiff{exif, exif[0] == 'I'};
    if (tiff.number(2, 2) != 42) return 1;
    const std::size_t directory = tiff.number(4, 4), entries = tiff.number(directory, 2);
    for (std::size_t i = 0; i < entries; ++i) {
        const std::size_t entry = directory + 2 + 12 * i;
        if (tiff.number(entry, 2) != 0x0112) continue;
        // The standard's type is SHORT; some programs write other integers, such as BYTE and LONG.
        const std::uint32_t type = tiff.number(entry + 2, 2);
        const std::size_t size = type == 1 || type == 6   ? 1
                                 : type == 3 || type == 8 ? 2
                                 : type == 4 || type == 9 ? 4
                                                          : 0;
        const std::uint32_t value = tiff.number(entry + 8, size);
        return tiff.number(entry + 4, 4) == 1 && value >= 1 && value <= 8 ? int(value) : 1;
    }
    return 1;
}

// Orientations 5 to 8 exchange rows and columns; then 2, 3, 6 and 7 mirror columns, and 3, 4, 7 and 8 rows.
Pixels oriented(const Pixels& image, int orientation) {
    if (orientation == 1) return image;
    const bool turned = orientation >= 5;
    const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    const Pixels result = turned ? new_pixels(image.width, image.height, image.channels)
                                 : new_pixels(image.height, image.width, image.channels);
    for (std::int64_t y = 0; y < result.height; ++y)
        for (std::int64_t x = 0; x < result.width; ++x) {
            const std::int64_t i = mirror_y ? result.height - 1 - y : y,
                               j = mirror_x ? result.width - 1 - x : x;
            std::copy_n(turned ? image.at(j, i) : image.at(i, j), image.channels, result.at(y, x));
        }
    return result;
}

}  // namespace mezzo::data
