// Interface between read_image() and the libraries that decode. Both libraries report errors by longjmp,
// which must not cross an object with a destructor: each decoder calls them in functions without such
// objects.
#pragma once

#include <span>
#include <string>

#include "data/pixels.h"
#include "mezzo/data/images.h"

namespace mezzo::data {

// A file in memory, and the beginning of error messages: "read_image: cat.png".
struct ImageBytes {
    std::span<const unsigned char> bytes;
    std::string name;
    const ReadImageOptions& options;
};
// Throws Error(io) for sizes that are not positive, or more pixels than allowed.
void check_sizes(const ImageBytes& file, std::int64_t height, std::int64_t width);

struct DecodedImage {
    Pixels pixels;
    int orientation = 1;  // EXIF's, 1 to 8; 1 is upright
};
// Both throw Error(io), also if this build lacks the library.
DecodedImage decode_png(const ImageBytes& file);
DecodedImage decode_jpeg(const ImageBytes& file);

// Returns the orientation in EXIF data, which begins with the TIFF header; 1 if there is none or the data are
// damaged.
int exif_orientation(std::span<const unsigned char> exif);
// Returns the image turned upright.
Pixels oriented(const Pixels& image, int orientation);

}  // namespace mezzo::data
