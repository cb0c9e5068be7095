// Image data: CIFAR-10, PNG and JPEG files, and folders of images.
//
//   const data::ImageFolder photos("photos");  // photos/cat/1.jpg, photos/dog/2.png
//   data::DataLoader loader(photos, {.batch_size = 8, .transforms = {data::RandomResizedCrop{.size = 224}}});
//   data::write_png("first.png", photos.image(0));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mezzo/data/loader.h"
#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

struct Cifar10Options {
    // Folder of the "binary version" (data_batch_1.bin to data_batch_5.bin and test_batch.bin), or the folder
    // that holds cifar-10-batches-bin.
    std::string directory = {};
    bool train = true;                    // the five training files; else the test file
    std::vector<std::string> files = {};  // if not empty, these files are read instead, in this order
};
// Images uint8 [n, 32, 32, 3] and labels 0 to 9 of CIFAR-10 (Krizhevsky 2009). A record is one byte of label
// and 3,072 of pixels, red, green and blue one after the other. Throws Error(io) for a file that is missing,
// no regular file, empty, or whose size is no multiple of 3,073, and for a label above 9; Error(value) where
// neither a directory nor files are given.
[[nodiscard]] Dataset cifar10(const Cifar10Options& options);

enum class ImageMode : std::uint8_t {
    unchanged,  // as many channels as the file has; a palette becomes colours, CMYK becomes RGB
    gray,       // 1 channel, (19595 R + 38470 G + 7471 B + 32768) / 65536 as in PIL
    rgb,        // 3 channels; transparency is dropped
    rgb_alpha,  // 4 channels; 255 is opaque
};
struct ReadImageOptions {
    ImageMode mode = ImageMode::unchanged;
    // Whether the image is rotated and mirrored by its EXIF orientation. Off by default, as in torchvision,
    // because published weights were trained on the pixels as stored.
    bool apply_exif_orientation = false;
    // larger images throw before memory is allocated for them, as in PIL
    std::int64_t max_pixels = 178'956'970;
    // Above 0, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, the smallest whose sides both have this many
    // pixels, as by Image.draft() of PIL: less work, for transforms that make images smaller.
    // Sides are rounded up, and pixels differ a little from those of a resize. PNG is read as stored.
    std::int64_t least_side = 0;
};
// Reads a PNG or JPEG file, detected by its first bytes, as uint8 [height, width, channels]: 1 channel grey,
// 2 grey and alpha, 3 RGB, 4 RGB and alpha. 16-bit samples are rounded to 8. Throws Error(io) for a file that
// is missing, no regular file, truncated, damaged, larger than max_pixels or 1 GiB, or of another format, and
// if this build of mezzo lacks the library for the format (options png and jpeg in
// docs/reference/building.md). Damage that libjpeg-turbo only warns about, such as wrong bits in the
// coefficients, is decoded, as in PIL.
[[nodiscard]] Tensor read_image(const std::string& path, const ReadImageOptions& options = {});
// Decodes a PNG or JPEG file in memory, as read_image().
[[nodiscard]] Tensor decode_image(std::span<const std::byte> file, const ReadImageOptions& options = {});

// Writes uint8 [height, width] or [height, width, channels], 1 to 4 channels as read_image() returns them.
// Replaces the file atomically: writes PATH.mezzo-partial and renames it. If it cannot be written, throws
// Error(io) and leaves the old file; throws Error(shape), Error(dtype) or Error(device) for a tensor that is
// not an image.
void write_png(const std::string& path, const Tensor& image);

// Data set of images in one folder per class, as torchvision's ImageFolder: root/cat/1.jpg, root/dog/x/2.png.
// Classes are the sub-folders in sorted order. Images of a class are its files that end in .jpg, .jpeg or
// .png (in upper or lower case), also in nested folders, in sorted order. Copies share the lists.
class ImageFolder {
public:
    // Lists the files and opens none. Throws Error(io) if root cannot be read or has no sub-folder, and for a
    // class without an image.
    explicit ImageFolder(const std::string& root, const ReadImageOptions& options = {.mode = ImageMode::rgb});
    [[nodiscard]] std::int64_t size() const;
    [[nodiscard]] const std::vector<std::string>& classes() const;
    // The label of a class. Throws Error(value) for an unknown name.
    [[nodiscard]] std::int64_t class_to_index(const std::string& name) const;
    [[nodiscard]] const std::vector<std::string>& files() const;  // paths, beginning with root
    // Both throw Error(value) unless 0 <= index < size().
    [[nodiscard]] std::int64_t label(std::int64_t index) const;
    [[nodiscard]] Tensor image(std::int64_t index) const;  // decoded now

private:
    struct Lists : mezzo::detail::SharedObject {
        std::vector<std::string> classes, files;
        std::vector<std::int64_t> labels;
    };
    mezzo::detail::SharedHandle<Lists> lists_;
    ReadImageOptions options_;
};

}  // namespace mezzo::data

#pragma GCC visibility pop
