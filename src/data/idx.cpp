// The IDX format (http://yann.lecun.com/exdb/mnist): two zero bytes, element type, number of dimensions,
// big-endian sizes, elements.
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mezzo/data.h"

namespace mezzo::data {

namespace {

// A file that zlib reads, compressed or not.
class File {
public:
    explicit File(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
        check(file_ != nullptr, ErrorKind::io, "read_idx: cannot open ", path, ": ", std::strerror(errno));
    }
    ~File() { gzclose(file_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    void read(void* to, std::size_t bytes, const char* what) {
        std::size_t done = 0;
        while (done < bytes) {
            const auto chunk = unsigned(std::min<std::size_t>(bytes - done, 1u << 24));
            const int got = gzread(file_, static_cast<char*>(to) + done, chunk);
            int code = Z_OK;
            const char* const text = gzerror(file_, &code);
            check(got > 0 || code == Z_OK || code == Z_BUF_ERROR, ErrorKind::io, "read_idx: ", path_,
                  " is damaged: ", text);
            check(got > 0, ErrorKind::io, "read_idx: ", path_, " is truncated: its ", what, " have ", bytes,
                  " bytes, it ends after ", done);
            done += std::size_t(got);
        }
    }
    // Reading the end also makes zlib compare the checksum.
    void expect_end() {
        char extra = 0;
        const int got = gzread(file_, &extra, 1);
        int code = Z_OK;
        const char* const text = gzerror(file_, &code);
        check(got <= 0, ErrorKind::io, "read_idx: ", path_, " goes on after its elements");
        check(got == 0 && code == Z_OK, ErrorKind::io, "read_idx: ", path_, " is damaged: ", text);
    }

private:
    std::string path_;
    gzFile file_;
};

std::uint32_t big_endian(const unsigned char* p) {
    return std::uint32_t(p[0]) << 24 | std::uint32_t(p[1]) << 16 | std::uint32_t(p[2]) << 8 |
           std::uint32_t(p[3]);
}

Dtype element_type(const std::string& path, int code) {
    switch (code) {
        case 0x08:
            return uint8;
        case 0x0c:
            return int32;
        case 0x0d:
            return float32;
        case 0x0e:
            return float64;
        default:
            break;
    }
    fail(ErrorKind::io, "read_idx: ", path, " has elements of type ", code,
         "; 8 (unsigned byte), 12 (int32), 13 (float32) and 14 (float64) are read");
}

}  // namespace

Tensor read_idx(const std::string& path) {
    File file(path);
    unsigned char magic[4] = {};
    file.read(magic, 4, "magic bytes");
    check(magic[0] == 0 && magic[1] == 0, ErrorKind::io, "read_idx: ", path,
          " is no IDX file: it starts with ", int(magic[0]), " ", int(magic[1]), ", not 0 0");
    const Dtype dtype = element_type(path, magic[2]);
    check(magic[3] >= 1 && magic[3] <= max_dims, ErrorKind::io, "read_idx: ", path, " has ", int(magic[3]),
          " dimensions; 1 to ", max_dims, " are read");
    unsigned char sizes[4 * max_dims] = {};
    file.read(sizes, 4u * magic[3], "sizes");
    Shape shape;
    std::int64_t numel = 1;
    constexpr std::int64_t limit = std::int64_t(1) << 40;
    for (int d = 0; d < magic[3]; ++d) {
        shape.push_back(big_endian(sizes + 4 * d));
        check(shape[d] == 0 || numel <= limit / shape[d], ErrorKind::io, "read_idx: ", path, " claims shape ",
              shape);
        numel *= shape[d];
    }
    const Tensor result = empty(shape, {.dtype = dtype});
    const std::size_t bytes = std::size_t(numel) * size_of(dtype);
    std::vector<unsigned char> raw(bytes);
    file.read(raw.data(), bytes, "elements");
    file.expect_end();
    if (const std::size_t size = size_of(dtype); size > 1)
        for (std::size_t i = 0; i < bytes; i += size)
            std::reverse(raw.begin() + std::ptrdiff_t(i), raw.begin() + std::ptrdiff_t(i + size));
    void* const to = dtype == uint8     ? static_cast<void*>(result.data<std::uint8_t>())
                     : dtype == int32   ? static_cast<void*>(result.data<std::int32_t>())
                     : dtype == float32 ? static_cast<void*>(result.data<float>())
                                        : static_cast<void*>(result.data<double>());
    if (bytes > 0) std::memcpy(to, raw.data(), bytes);
    return result;
}

// Whether something has that name. What it is, and whether it may be read, is for read_idx() to say.
static bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

Dataset fashion_mnist(const FashionMnistOptions& options) {
    const std::string prefix = options.directory + (options.train ? "/train" : "/t10k");
    const auto path = [&](const char* rest) {
        const std::string plain = prefix + rest, packed = plain + ".gz";
        if (is_there(packed)) return packed;
        check(is_there(plain), ErrorKind::io, "fashion_mnist: ", options.directory, " holds neither ",
              packed.substr(options.directory.size() + 1),
              " nor the same without .gz; on Debian the package ", "dataset-fashion-mnist has the files");
        return plain;
    };
    const Tensor images = read_idx(path("-images-idx3-ubyte")), labels = read_idx(path("-labels-idx1-ubyte"));
    check(images.dtype() == uint8 && images.dim() == 3 && labels.dtype() == uint8 && labels.dim() == 1 &&
              images.size(0) == labels.size(0),
          ErrorKind::io, "fashion_mnist: ", options.directory, " has images of shape ", images.shape(),
          " and labels of shape ", labels.shape(),
          "; [n, height, width] and [n] of unsigned bytes are expected");
    check(images.size(0) > 0, ErrorKind::io, "fashion_mnist: ", path("-images-idx3-ubyte"),
          " holds no images");
    return {images, labels.to(int64)};
}

}  // namespace mezzo::data
