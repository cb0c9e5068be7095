// Reads image files: chooses the decoder, and converts the number of channels.
#include <algorithm>
#include <cstring>

#include "core/enumerators.h"
#include "core/system/file_kind.h"
#include "data/color.h"
#include "data/image_codec.h"
#include "io/whole_file.h"

namespace mezzo::data {

namespace {

bool begins_with(std::span<const unsigned char> bytes, std::string_view magic) {
    return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

DecodedImage decode(const ImageBytes& file) {
    if (begins_with(file.bytes, "\x89PNG\r\n\x1a\n")) return decode_png(file);
    if (begins_with(file.bytes, "\xff\xd8\xff")) return decode_jpeg(file);
    std::string first;
    for (std::size_t i = 0; i < std::min<std::size_t>(file.bytes.size(), 4); ++i) {
        constexpr char digits[] = "0123456789abcdef";
        first += {' ', digits[file.bytes[i] >> 4], digits[file.bytes[i] & 15]};
    }
    const std::string kind = file_kind({reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()});
    fail(ErrorKind::io, file.name,
         " is neither PNG nor JPEG: ", first.empty() ? "it is empty" : "it begins with the bytes" + first,
         kind.empty() ? "" : "; it is " + kind);
}

// Converts one pixel of 1 to 4 channels to another number of channels.
void convert(const std::uint8_t* from, std::int64_t have, std::uint8_t* to, std::int64_t want) {
    if (want == 1) {
        to[0] = have < 3 ? from[0] : gray_of(from[0], from[1], from[2]);
        return;
    }
    for (int c = 0; c < 3; ++c) to[c] = from[have < 3 ? 0 : c];
    if (want == 4) to[3] = have == 2 ? from[1] : have == 4 ? from[3] : std::uint8_t(255);
}

Pixels converted(const Pixels& image, ImageMode mode) {
    const std::int64_t want = mode == ImageMode::gray        ? 1
                              : mode == ImageMode::rgb       ? 3
                              : mode == ImageMode::rgb_alpha ? 4
                                                             : image.channels;
    if (want == image.channels) return image;
    Pixels result = new_pixels(image.height, image.width, want);
    for (std::int64_t i = 0; i < image.height * image.width; ++i)
        convert(image.at(0, 0) + i * image.channels, image.channels, result.at(0, 0) + i * want, want);
    return result;
}

Tensor decode(const ImageBytes& file, const ReadImageOptions& options) {
    check_enumerator("read_image", "mode", options.mode, ImageMode::rgb_alpha);
    check(options.least_side >= 0, ErrorKind::value, file.name, ": least_side is ", options.least_side);
    const DecodedImage image = decode(file);
    const Pixels pixels = converted(image.pixels, options.mode);
    return (options.apply_exif_orientation ? oriented(pixels, image.orientation) : pixels).image;
}

}  // namespace

void check_sizes(const ImageBytes& file, std::int64_t height, std::int64_t width) {
    check(height > 0 && width > 0, ErrorKind::io, file.name, " has ", width, " by ", height, " pixels");
    check(height <= file.options.max_pixels / width, ErrorKind::io, file.name, " has ", width, " by ", height,
          " pixels, more than max_pixels, ", file.options.max_pixels);
}

Tensor read_image(const std::string& path, const ReadImageOptions& options) {
    const std::vector<unsigned char> bytes = io::whole_file("read_image", path);
    return decode({bytes, "read_image: " + path, options}, options);
}

Tensor decode_image(std::span<const std::byte> file, const ReadImageOptions& options) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(file.data());
    return decode({{bytes, file.size()}, "decode_image: the image", options}, options);
}

}  // namespace mezzo::data
