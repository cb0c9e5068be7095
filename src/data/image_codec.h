// Between read_image() and the libraries that decode. Both report errors by a jump, which must not cross an
// object with a destructor: each decoder makes it inside functions that have none.
#pragma once

#include <span>
#include <string>

#include "data/pixels.h"
#include "mezzo/images.h"

namespace mezzo::data {

// A file in memory, and how errors begin: "read_image: cat.png".
struct ImageBytes {
    std::span<const unsigned char> bytes;
    std::string name;
    std::int64_t max_pixels;
};
// Throws Error(io) for sizes that are not positive, or more pixels than allowed.
void check_sizes(const ImageBytes& file, std::int64_t height, std::int64_t width);

struct DecodedImage {
    Pixels pixels;
    int orientation = 1;  // EXIF's, 1 to 8; 1 is upright
};
// Throw Error(io), also where this build lacks the library.
DecodedImage decode_png(const ImageBytes& file);
DecodedImage decode_jpeg(const ImageBytes& file);

// The orientation in EXIF data, which begins with the TIFF header; 1 where there is none, or the data are damaged.
int exif_orientation(std::span<const unsigned char> exif);
// Turned upright.
Pixels oriented(const Pixels& image, int orientation);

}  // namespace mezzo::data
