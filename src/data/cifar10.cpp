// Reads the binary version of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html).
#include <fcntl.h>
#include <unistd.h>

#include "core/system/regular_file.h"
#include "core/tensor_impl.h"
#include "cpu/parallel.h"
#include "io/whole_file.h"
#include "mezzo/data/images.h"

namespace mezzo::data {

namespace {

constexpr std::int64_t side = 32, plane = side * side, pixel_bytes = 3 * plane, record = 1 + pixel_bytes;

// Converts planes of red, green and blue to pixels.
void interleave(const unsigned char* from, std::uint8_t* to) {
    for (std::int64_t i = 0; i < plane; ++i, to += 3) {
        to[0] = from[i];
        to[1] = from[plane + i];
        to[2] = from[2 * plane + i];
    }
}

std::vector<std::string> files_of(const Cifar10Options& options) {
    if (!options.files.empty()) return options.files;
    check(!options.directory.empty(), ErrorKind::value,
          "cifar10: neither directory nor files are given; .directory is the folder with data_batch_1.bin");
    std::string folder = options.directory;
    if (access((folder + "/cifar-10-batches-bin").c_str(), F_OK) == 0) folder += "/cifar-10-batches-bin";
    if (!options.train) return {folder + "/test_batch.bin"};
    std::vector<std::string> files;
    for (const char digit : {'1', '2', '3', '4', '5'})
        files.push_back(folder + "/data_batch_" + digit + ".bin");
    return files;
}

// Checks the sizes of all files before any is read.
std::int64_t count_records(const std::string& path) {
    const RegularFile file = open_regular("cifar10", path);
    ::close(file.descriptor);
    check(file.bytes > 0, ErrorKind::io, "cifar10: ", path, " is empty");
    check(file.bytes % record == 0, ErrorKind::io, "cifar10: ", path, " has ", file.bytes,
          " bytes, no multiple of ", record, ", the size of a record; is it the binary version, unpacked?");
    return std::int64_t(file.bytes / record);
}

void read_records(const std::string& path, std::int64_t count, std::uint8_t* images, std::int64_t* labels) {
    const std::vector<unsigned char> bytes = io::whole_file("cifar10", path);
    check(bytes.size() == std::size_t(count * record), ErrorKind::io, "cifar10: ", path,
          " changed while it was read");
    for (std::int64_t i = 0; i < count; ++i) {
        const unsigned char label = bytes[std::size_t(i * record)];
        check(label <= 9, ErrorKind::io, "cifar10: ", path, " has label ", int(label), " in record ", i,
              "; labels are 0 to 9, so this is no file of CIFAR-10");
        labels[i] = label;
    }
    cpu::parallel_for(count, 64, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
            interleave(&bytes[std::size_t(i * record + 1)], images + i * pixel_bytes);
    });
}

}  // namespace

Dataset cifar10(const Cifar10Options& options) {
    const std::vector<std::string> files = files_of(options);
    std::vector<std::int64_t> counts;
    std::int64_t n = 0;
    for (const std::string& path : files) {
        counts.push_back(count_records(path));
        n += counts.back();
    }
    const Dataset result{empty({n, side, side, 3}, {.dtype = uint8}), empty({n}, {.dtype = int64})};
    auto* images = static_cast<std::uint8_t*>(raw(result.x));
    auto* labels = static_cast<std::int64_t*>(raw(result.y));
    for (std::size_t i = 0; i < files.size(); ++i) {
        read_records(files[i], counts[i], images, labels);
        images += counts[i] * pixel_bytes;
        labels += counts[i];
    }
    return result;
}

}  // namespace mezzo::data
