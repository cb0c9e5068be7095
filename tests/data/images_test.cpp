// CIFAR-10, PNG and JPEG files, and folders of images. Each format's cases need its library.
#include "mezzo/data/images.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <string>
#include <string_view>

#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"
#include "tests/data/test_image.h"
#include "tests/reference/image_files.h"
#include "tests/support/folder.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

using Bytes = std::vector<std::uint8_t>;

const reference::FileRow& row_of(std::string_view name) {
    for (const reference::FileRow& row : reference::files)
        if (row.name == name) return row;
    FAIL("no file of that name");
    return reference::files[0];
}
std::string file_of(std::string_view name) {
    const reference::FileRow& row = row_of(name);
    return {row.bytes, row.size};
}

Tensor decoded(const std::string& file, const data::ReadImageOptions& options = {}) {
    return data::decode_image(std::as_bytes(std::span(file)), options);
}

// Whether this build reads files with that extension.
bool reads(const std::string& name) {
    try {
        (void)decoded(name.ends_with(".png") ? file_of("pixel.png") : file_of("gray.jpg"));
        return true;
    } catch (const Error& error) {
        REQUIRE_THAT(error.what(),
                     Contains(name.ends_with(".png") ? "install libpng-dev and configure with -Dpng"
                                                     : "install libjpeg62-turbo-dev and configure"));
        return false;
    }
}

Bytes pixel(const Tensor& image, std::int64_t y, std::int64_t x) {
    return image.select(0, y).select(0, x).to_vector<std::uint8_t>();
}

// While it exists, writes beyond so many bytes of a file fail.
class FileSizeLimit {
public:
    explicit FileSizeLimit(rlim_t bytes) {
        REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
        const rlimit small{bytes, before_.rlim_max};
        REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    }
    ~FileSizeLimit() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    FileSizeLimit(const FileSizeLimit&) = delete;
    FileSizeLimit& operator=(const FileSizeLimit&) = delete;

private:
    rlimit before_ = {};
    void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

// A record of CIFAR-10 whose red, green and blue planes count from `first`, first + 1 and first + 2.
std::string record(int label, int first) {
    std::string bytes(1, char(label));
    for (int plane = 0; plane < 3; ++plane)
        for (int i = 0; i < 1024; ++i) bytes += char((first + plane + i) & 255);
    return bytes;
}

}  // namespace

TEST_CASE("cifar10: planes become pixels, files come in order, directories have the usual names",
          "[images]") {
    const Folder folder;
    const std::string one = folder.write("one", record(3, 0) + record(9, 100)),
                      two = folder.write("two", record(0, 7));
    const data::Dataset set = data::cifar10({.files = {one, two}});
    CHECK(set.x.shape() == Shape{3, 32, 32, 3});
    CHECK(set.x.dtype() == uint8);
    CHECK(set.y.to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 9, 0});
    CHECK(pixel(set.x[0], 0, 0) == Bytes{0, 1, 2});
    CHECK(pixel(set.x[0], 2, 5) == Bytes{69, 70, 71});
    CHECK(pixel(set.x[1], 31, 31) == Bytes{99, 100, 101});
    CHECK(pixel(set.x[2], 0, 1) == Bytes{8, 9, 10});

    std::filesystem::create_directory(folder.file("cifar-10-batches-bin"));
    for (int i = 1; i <= 5; ++i)
        folder.write("cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin", record(i, i));
    folder.write("cifar-10-batches-bin/test_batch.bin", record(8, 1) + record(7, 1));
    for (const std::string& directory : {folder.path, folder.file("cifar-10-batches-bin")}) {
        CHECK(data::cifar10({.directory = directory}).y.to_vector<std::int64_t>() ==
              std::vector<std::int64_t>{1, 2, 3, 4, 5});
        CHECK(data::cifar10({.directory = directory, .train = false}).size() == 2);
    }
}

TEST_CASE("cifar10: what is no such file is refused", "[images]") {
    const Folder folder;
    const auto reading = [&](const std::string& path) { return data::cifar10({.files = {path}}); };
    CHECK_THROWS_WITH(reading(folder.file("absent")),
                      Contains("cifar10: cannot open") && Contains("No such file"));
    CHECK_THROWS_WITH(data::cifar10({.directory = folder.path}), Contains("data_batch_1.bin"));
    CHECK_THROWS_WITH(data::cifar10({}), Contains("neither directory nor files"));
    CHECK_THROWS_WITH(reading(folder.write("empty", "")), Contains("is empty"));
    CHECK_THROWS_WITH(reading(folder.write("short", record(1, 1).substr(1))),
                      Contains("has 3072 bytes, no multiple of 3073"));
    CHECK_THROWS_WITH(reading(folder.write("label", record(1, 1) + record(10, 1))),
                      Contains("has label 10 in record 1"));
    CHECK_THROWS_WITH(reading(folder.path), Contains("is no regular file but a directory"));
    const std::string pipe = folder.file("pipe");
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    alarm(20);
    CHECK_THROWS_WITH(reading(pipe), Contains("is no regular file but a named pipe"));
    CHECK_THROWS_WITH(data::read_image(pipe), Contains("is no regular file but a named pipe"));
    alarm(0);
}

TEST_CASE("image files: a JPEG is decoded at a part of its size", "[images]") {
    if (!reads("a.jpg")) return;
    for (const char* const name : {"rgb.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg", "turned.jpg"}) {
        CAPTURE(name);
        const std::string file = file_of(name);
        const Tensor whole = decoded(file);
        const std::int64_t height = whole.size(0), width = whole.size(1), side = std::min(height, width);
        CHECK(equal(decoded(file, {.least_side = side}), whole));
        CHECK(equal(decoded(file, {.least_side = side / 2 + 1}), whole));
        for (const std::int64_t part : {2, 4, 8}) {
            if (side / part == 0) continue;
            const Tensor small = decoded(file, {.least_side = side / part});
            CHECK(small.shape() ==
                  Shape{(height + part - 1) / part, (width + part - 1) / part, whole.size(2)});
            const Tensor difference = mean(small.to(float32), {0, 1}) - mean(whole.to(float32), {0, 1});
            CHECK(max(abs(difference)).item<float>() < 12);
        }
    }
    CHECK(equal(decoded(file_of("rgb.png"), {.least_side = 1}), decoded(file_of("rgb.png"))));
    CHECK_THROWS_WITH(decoded(file_of("rgb.jpg"), {.least_side = -1}), Contains("least_side is -1"));
}

TEST_CASE("image files: pixels are PIL's", "[images]") {
    const Folder folder;
    for (const reference::FileRow& row : reference::files) {
        CAPTURE(row.name);
        if (!reads(row.name)) continue;
        const std::string file(row.bytes, row.size);
        const Tensor image = data::read_image(folder.write(row.name, file));
        CHECK(image.shape() == Shape{row.sizes[0], row.sizes[1], row.sizes[2]});
        CHECK(checksum(image) == row.checksum);
        CHECK(checksum(decoded(file)) == row.checksum);
        CHECK(decoded(file, {.mode = data::ImageMode::rgb}).size(2) == 3);
        CHECK(decoded(file, {.mode = data::ImageMode::gray}).size(2) == 1);
        CHECK(decoded(file, {.mode = data::ImageMode::rgb_alpha}).size(2) == 4);
    }
}

TEST_CASE("image files: modes convert channels", "[images]") {
    if (!reads("a.png")) return;
    using data::ImageMode;
    const auto as = [&](const char* name, ImageMode mode) { return decoded(file_of(name), {.mode = mode}); };
    const Tensor rgb = decoded(file_of("rgb.png")), four = decoded(file_of("rgb_alpha.png"));
    CHECK(checksum(as("rgb_alpha.png", ImageMode::rgb)) == checksum(four.slice(2, 0, 3)));
    CHECK(checksum(as("rgb.png", ImageMode::rgb_alpha).slice(2, 0, 3)) == checksum(rgb));
    CHECK(as("rgb.png", ImageMode::rgb_alpha).select(2, 3).to_vector<std::uint8_t>() == Bytes(143, 255));
    const Tensor gray = as("rgb.png", ImageMode::gray);
    for (std::int64_t x = 0; x < 13; ++x) {
        const Bytes p = pixel(rgb, 4, x);
        CHECK(pixel(gray, 4, x)[0] ==
              std::uint8_t(std::floor(0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2] + 0.5)));
    }
    const Tensor one = decoded(file_of("gray_alpha.png"));
    CHECK(pixel(as("gray_alpha.png", ImageMode::rgb_alpha), 3, 2) ==
          Bytes{pixel(one, 3, 2)[0], pixel(one, 3, 2)[0], pixel(one, 3, 2)[0], pixel(one, 3, 2)[1]});
}

TEST_CASE("image files: EXIF orientations turn the image if asked to", "[images]") {
    if (!reads("a.jpg")) return;
    std::string file = file_of("turned.jpg");
    const Tensor image = decoded(file);
    CHECK(image.shape() == Shape{17, 20, 3});
    const std::size_t value = file.find(std::string("\x01\x12\0\x03\0\0\0\x01\0", 9));  // big-endian
    REQUIRE(value != std::string::npos);
    for (int orientation = 0; orientation <= 9; ++orientation) {
        file[value + 9] = char(orientation);
        CHECK(checksum(decoded(file)) == checksum(image));
        const Tensor turned = decoded(file, {.apply_exif_orientation = true});
        const bool exchanged = orientation >= 5 && orientation <= 8;
        REQUIRE(turned.shape() == (exchanged ? Shape{20, 17, 3} : Shape{17, 20, 3}));
        // Position in the file of the upright image's top left corner, then of its top right corner.
        const int rows[] = {0, 0, 0, 16, 16, 0, 16, 16, 0, 0}, columns[] = {0, 0, 19, 19, 0, 0, 0, 19, 19, 0};
        const int next_rows[] = {0, 0, 0, 16, 16, 16, 0, 0, 16, 0},
                  next_columns[] = {19, 19, 0, 0, 19, 0, 0, 19, 19, 19};
        const auto i = std::size_t(orientation);
        CAPTURE(orientation);
        CHECK(pixel(turned, 0, 0) == pixel(image, rows[i], columns[i]));
        CHECK(pixel(turned, 0, turned.size(1) - 1) == pixel(image, next_rows[i], next_columns[i]));
    }
}

TEST_CASE("image files: an EXIF orientation may be of any type of integers", "[images]") {
    if (!reads("a.jpg")) return;
    const std::string file = file_of("turned.jpg");
    const std::size_t entry = file.find(std::string("\x01\x12\0\x03\0\0\0\x01\0", 9));  // big-endian
    REQUIRE(entry != std::string::npos);
    const auto turned = [&](int type, const std::string& value) {
        std::string changed = file;
        changed[entry + 3] = char(type);
        changed.replace(entry + 8, 4, value);
        return decoded(changed, {.apply_exif_orientation = true}).size(0) == 20;
    };
    CHECK(turned(4, std::string("\0\0\0\6", 4)));
    CHECK_FALSE(turned(4, std::string("\0\6\0\0", 4)));
    CHECK(turned(3, std::string("\0\6\0\0", 4)));
    CHECK(turned(1, std::string("\6\0\0\0", 4)));
    CHECK_FALSE(turned(2, std::string("\6\0\0\0", 4)));
}

TEST_CASE("image files: a JPEG that breaks off by a marker of no meaning is damaged", "[images]") {
    if (!reads("a.jpg")) return;
    for (const char* const name : {"rgb.jpg", "cmyk.jpg"}) {
        const std::string file = file_of(name);
        const std::size_t scan = file.find("\xff\xda");
        REQUIRE(scan != std::string::npos);
        const std::size_t middle = scan + (file.size() - scan) / 2;
        for (const char marker : {'\x02', '\xc0', '\xd8'}) {
            std::string bad = file;
            bad.insert(middle, {'\xff', marker});
            CHECK_THROWS_WITH(decoded(bad), Contains("is damaged"));
        }
    }
}

TEST_CASE("image files: CMYK without Adobe's marker is read as with it", "[images]") {
    if (!reads("a.jpg")) return;
    std::string file = file_of("cmyk.jpg");
    const Tensor image = decoded(file);
    const std::size_t marker = file.find("\xff\xee");
    REQUIRE(marker != std::string::npos);
    REQUIRE(file[marker + 15] == 0);  // no YCCK
    file.erase(marker, 16);
    CHECK(checksum(decoded(file)) == checksum(image));
}

TEST_CASE("image files: truncated and damaged ones are refused, and nothing else happens", "[images]") {
    for (const char* const name : {"rgb.png", "interlaced.png", "palette.png", "wide.png", "rgb.jpg",
                                   "progressive.jpg", "cmyk.jpg", "turned.jpg"}) {
        if (!reads(name)) continue;
        const std::string file = file_of(name);
        CAPTURE(name);
        for (std::size_t size = 0; size + 4 < file.size(); ++size) {
            CAPTURE(size);
            CHECK_THROWS_AS(decoded(file.substr(0, size)), Error);
        }
        int refused = 0;
        for (std::size_t at = 0; at < file.size(); ++at)
            for (const int bit : {1, 128}) {
                std::string damaged = file;
                damaged[at] = char(damaged[at] ^ bit);
                try {
                    const Tensor image = decoded(damaged, {.max_pixels = 1 << 20});
                    CHECK(image.numel() > 0);
                } catch (const Error& error) {
                    CHECK(error.kind() == ErrorKind::io);
                    ++refused;
                }
            }
        CHECK(refused > 20);
    }
    CHECK_THROWS_WITH(decoded(""), Contains("is neither PNG nor JPEG: it is empty"));
    CHECK_THROWS_WITH(decoded("GIF89a"), Contains("it begins with the bytes 47 49 46 38"));
    const Folder folder;
    CHECK_THROWS_WITH(data::read_image(folder.file("absent.png")), Contains("read_image: cannot open"));
    CHECK_THROWS_WITH(data::read_image(folder.path), Contains("is no regular file but a directory"));
}

TEST_CASE("image files: sizes beyond the limit, or the file, cost no memory", "[images]") {
    const std::uint64_t before = memory_stats(cpu_device).allocations;
    if (reads("a.png")) {
        CHECK_THROWS_WITH(decoded(file_of("rgb.png"), {.max_pixels = 142}),
                          Contains("has 13 by 11 pixels, more than max_pixels, 142"));
        // The header claims 20,000 by 8,000 pixels, with the right checksum.
        const std::string huge("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x4e\x20\0\0\x1f\x40\x08\x02\0\0\0", 29);
        std::uint32_t crc = 0xffffffff;
        for (const char c : huge.substr(12)) {
            crc ^= std::uint8_t(c);
            for (int k = 0; k < 8; ++k) crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
        }
        std::string file = huge;
        for (const int shift : {24, 16, 8, 0}) file += char(~crc >> shift & 255);
        file += file_of("rgb.png").substr(33);
        CHECK_THROWS_WITH(decoded(file), Contains("20000 by 8000 pixels cannot be in its"));
    }
    if (reads("a.jpg")) {
        std::string file = file_of("rgb.jpg");
        const std::size_t frame = file.find("\xff\xc0");
        REQUIRE(frame != std::string::npos);
        file.replace(frame + 5, 4, "\x4e\x20\x1f\x40");
        CHECK_THROWS_WITH(decoded(file), Contains("8000 by 20000 pixels cannot be in its"));
        file.replace(frame + 5, 4, "\xff\x00\xff\x00", 4);
        CHECK_THROWS_WITH(decoded(file), Contains("more than max_pixels, 178956970"));
    }
    // reads() itself decodes one small image of each format.
    CHECK(memory_stats(cpu_device).allocations <= before + 2);
}

TEST_CASE("write_png: what is written is read again", "[images]") {
    const Folder folder;
    if (!reads("a.png")) {
        CHECK_THROWS_WITH(data::write_png(folder.file("x.png"), test_image(2, 2, 3)),
                          Contains("-Dpng=enabled"));
        return;
    }
    for (const std::int64_t channels : {1, 2, 3, 4}) {
        const Tensor image = test_image(7, 9, channels);
        data::write_png(folder.file("x.png"), image);
        const Tensor again = data::read_image(folder.file("x.png"));
        CHECK(again.shape() == image.shape());
        CHECK(checksum(again) == checksum(image));
    }
    data::write_png(folder.file("x.png"), test_image(7, 9, 3).select(2, 1));  // a view of two dimensions
    CHECK(checksum(data::read_image(folder.file("x.png"))) == checksum(test_image(7, 9, 3).slice(2, 1, 2)));
    CHECK_THROWS_WITH(data::write_png(folder.file("no/x.png"), test_image(2, 2, 3)),
                      Contains("cannot create"));
    CHECK_THROWS_WITH(data::write_png(folder.file("y.png"), test_image(2, 2, 5)),
                      Contains("more than 4 channels"));
    CHECK_THROWS_WITH(data::write_png(folder.file("y.png"), zeros({2, 2, 3})),
                      Contains("write_png: the image is float32"));
    CHECK(folder.listing() == "x.png ");
    CHECK_THROWS_WITH(data::write_png(folder.file(""), test_image(2, 2, 3)), Contains("it is a folder"));
}

TEST_CASE("write_png: a picture that cannot be written leaves the old one", "[images]") {
    if (!reads("a.png")) return;
    const Folder folder;
    data::write_png(folder.file("x.png"), test_image(7, 9, 3));
    {
        const FileSizeLimit limit(1000);
        CHECK_THROWS_WITH(data::write_png(folder.file("x.png"), test_image(200, 200, 3)),
                          Contains("write_png: cannot write") && Contains("is left as it was"));
    }
    CHECK(folder.listing() == "x.png ");
    CHECK(checksum(data::read_image(folder.file("x.png"))) == checksum(test_image(7, 9, 3)));
}

TEST_CASE("ImageFolder: classes, files and labels in sorted order, decoded when asked for", "[images]") {
    if (!reads("a.png")) return;
    const Folder folder;
    for (const char* const name : {"dog", "cat", "cat/nested", "cat/another", "ant"})
        std::filesystem::create_directory(folder.file(name));
    for (const char* const name :
         {"dog/2.png", "dog/10.PNG", "cat/z.png", "cat/nested/a.png", "cat/another/b.png"})
        folder.write(name, file_of("rgb.png"));
    folder.write("ant/gray.png", file_of("gray.png"));
    folder.write("ant/notes.txt", "no image");
    folder.write("stray.png", file_of("rgb.png"));
    std::filesystem::create_directory_symlink(folder.path, folder.file("ant/loop"));
    std::filesystem::remove(folder.file("ant/loop"));
    std::filesystem::create_directory_symlink(folder.file("dog"), folder.file("dog/loop"));
    const data::ImageFolder images(folder.path);
    CHECK(images.classes() == std::vector<std::string>{"ant", "cat", "dog"});
    CHECK(images.class_to_index("dog") == 2);
    CHECK_THROWS_WITH(images.class_to_index("cow"), Contains("no class cow"));
    std::vector<std::string> names;
    for (const std::string& file : images.files()) names.push_back(file.substr(folder.path.size()));
    CHECK(names == std::vector<std::string>{"/ant/gray.png", "/cat/z.png", "/cat/another/b.png",
                                            "/cat/nested/a.png", "/dog/10.PNG", "/dog/2.png"});
    CHECK(images.label(3) == 1);
    CHECK(images.image(0).shape() == Shape{11, 13, 3});  // grey becomes RGB
    CHECK_THROWS_WITH(images.image(6), Contains("no image 6, there are 6"));

    data::DataLoader loader(images, {.batch_size = 4, .transforms = {data::Resize{8}, data::CenterCrop{8}}});
    std::vector<std::int64_t> labels;
    for (const auto& [x, y] : loader) {
        CHECK(x.shape() == Shape{y.size(0), 8, 8, 3});
        CHECK(x.dtype() == float32);
        for (const std::int64_t label : y.to_vector<std::int64_t>()) labels.push_back(label);
    }
    CHECK(labels == std::vector<std::int64_t>{0, 1, 1, 1, 2, 2});
    folder.write("dog/2.png", "now broken");
    CHECK_THROWS_WITH(
        [&] {
            for (const auto& [x, y] : loader) (void)x;
        }(),
        Contains("read_image: ") && Contains("dog/2.png is neither PNG nor JPEG"));
}

TEST_CASE("ImageFolder: folders without classes or images are refused", "[images]") {
    const Folder folder;
    CHECK_THROWS_WITH(data::ImageFolder(folder.file("absent")),
                      Contains("cannot read") && Contains("No such file"));
    CHECK_THROWS_WITH(data::ImageFolder(folder.path), Contains("has no sub-folder"));
    std::filesystem::create_directory(folder.file("cat"));
    folder.write("cat/a.gif", "GIF89a");
    CHECK_THROWS_WITH(data::ImageFolder(folder.path),
                      Contains("has no .jpg, .jpeg or .png file for class cat"));
    CHECK_THROWS_WITH(data::ImageFolder(folder.file("cat/a.gif")), Contains("cannot read"));
}
