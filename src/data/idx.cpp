// Reads the IDX format (http://yann.lecun.com/exdb/mnist): two zero bytes, element type, number of
// dimensions, big-endian sizes, elements.
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "core/system/file_kind.h"
#include "core/system/regular_file.h"
#include "core/tensor_impl.h"
#include "mezzo/data/loader.h"

namespace mezzo::data {

namespace {

// A file that zlib reads, compressed or not.
class File {
public:
    explicit File(const std::string& path) : path_(path) {
        const RegularFile file = open_regular("read_idx", path);
        size_ = file.bytes;
        file_ = gzdopen(file.descriptor, "rb");
        if (file_ != nullptr) return;
        ::close(file.descriptor);
        fail(ErrorKind::memory, "read_idx: no memory to read ", path);
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
    // Returns the kind of a file of another format that begins with these four bytes.
    std::string kind(const unsigned char (&magic)[4]) {
        std::string begin(magic, magic + 4);
        begin.resize(file_kind_bytes);
        const int more = gzread(file_, &begin[4], unsigned(begin.size() - 4));
        begin.resize(4 + std::size_t(std::max(more, 0)));
        return file_kind(begin);
    }
    // Checks the size in the header before memory is allocated for it: deflate makes at most 1032 bytes of
    // one.
    void expect(std::uint64_t bytes, const char* what) {
        const std::uint64_t most = gzdirect(file_) != 0 ? size_ : 1032 * size_;
        check(bytes <= most, ErrorKind::io, "read_idx: ", path_, " is truncated: its ", what, " have ", bytes,
              " bytes, the whole file has ", size_);
    }
    // Throws unless the file ends here. Reading the end also makes zlib compare the checksum.
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
    std::uint64_t size_ = 0;  // of the file, compressed or not
    gzFile file_ = nullptr;
};

std::uint32_t big_endian(const unsigned char* p) {
    return std::uint32_t(p[0]) << 24 | std::uint32_t(p[1]) << 16 | std::uint32_t(p[2]) << 8 |
           std::uint32_t(p[3]);
}

Dtype element_type(const std::string& path, int code) {
    switch (code) {
        case 0x08:
            return uint8;
        case 0x09:  // int8
        case 0x0b:  // int16
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
         "; 8 (unsigned byte), 9 (int8), 11 (int16), 12 (int32), 13 (float32) and 14 (float64) are read");
}

// Converts big-endian int8 or int16 to int32 in the same memory, from the last element on.
void widen(unsigned char* data, std::size_t count, std::size_t size) {
    for (std::size_t i = count; i-- > 0;) {
        const unsigned char* const from = data + i * size;
        const std::int32_t value = size == 1 ? std::int32_t(std::int8_t(from[0]))
                                             : std::int32_t(std::int16_t(from[0] << 8 | from[1]));
        std::memcpy(data + i * sizeof value, &value, sizeof value);
    }
}

}  // namespace

Tensor read_idx(const std::string& path) {
    File file(path);
    unsigned char magic[4] = {};
    file.read(magic, 4, "magic bytes");
    if (magic[0] != 0 || magic[1] != 0)
        if (const std::string kind = file.kind(magic); !kind.empty())
            fail(ErrorKind::io, "read_idx: ", path, " is no IDX file: it is ", kind);
    check(magic[0] == 0 && magic[1] == 0, ErrorKind::io, "read_idx: ", path,
          " is no IDX file: it starts with ", int(magic[0]), " ", int(magic[1]), ", not 0 0");
    const Dtype dtype = element_type(path, magic[2]);
    check(magic[3] >= 1 && magic[3] <= max_dims, ErrorKind::io, "read_idx: ", path, " has ", int(magic[3]),
          " dimensions; 1 to ", max_dims, " are read");
    unsigned char sizes[4 * max_dims] = {};
    file.read(sizes, 4u * magic[3], "sizes");
    Shape shape;
    for (int d = 0; d < magic[3]; ++d) shape.push_back(big_endian(sizes + 4 * d));
    const std::size_t size = magic[2] == 0x09 ? 1 : magic[2] == 0x0b ? 2 : size_of(dtype);
    const std::int64_t numel = count_elements(shape, std::max(size, size_of(dtype)));
    check(numel >= 0, ErrorKind::io, "read_idx: ", path, " claims shape ", shape);
    const std::size_t bytes = std::size_t(numel) * size;
    file.expect(bytes, "elements");
    const Tensor result = empty(shape, {.dtype = dtype});
    auto* const to = static_cast<unsigned char*>(raw(result));
    file.read(to, bytes, "elements");
    file.expect_end();
    if (size != size_of(dtype)) {
        widen(to, std::size_t(numel), size);
        return result;
    }
    if (size > 1)
        for (std::size_t i = 0; i < bytes; i += size) std::reverse(to + i, to + i + size);
    return result;
}

// Whether a file of this name exists. read_idx() checks its type and whether it can be read.
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
