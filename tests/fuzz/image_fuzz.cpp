// libFuzzer target of images: any bytes are refused with an Error, or read whole. The first byte chooses
// whether the EXIF orientation is applied, and the channels.
#include <cstdlib>
#include <cstring>

#include "mezzo/data/images.h"

using namespace mezzo;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
    if (size == 0) return 0;
    const data::ImageMode modes[] = {data::ImageMode::unchanged, data::ImageMode::gray, data::ImageMode::rgb,
                                     data::ImageMode::rgb_alpha};
    const auto mode = modes[bytes[0] & 3];
    try {
        const Tensor image = data::decode_image(std::as_bytes(std::span(bytes + 1, size - 1)),
                                                {.mode = mode,
                                                 .apply_exif_orientation = (bytes[0] & 4) != 0,
                                                 .max_pixels = 1 << 18,
                                                 .least_side = bytes[0] >> 3});
        require(image.dtype() == uint8 && image.dim() == 3 && image.numel() > 0);
        require(image.size(0) * image.size(1) <= 1 << 18);
        const std::int64_t channels[] = {image.size(2), 1, 3, 4};
        require(image.size(2) == channels[bytes[0] & 3] && image.size(2) <= 4);
        (void)
            image.to_vector<std::uint8_t>();  // a value that was never written shows under a memory sanitizer
    } catch (const Error& error) {
        require(error.kind() == ErrorKind::io && std::strlen(error.what()) < 2000);
    }
    return 0;
}
