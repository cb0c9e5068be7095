// libFuzzer target of safetensors: any bytes are refused with an Error, or read whole, and then written and
// read again without a change.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "io/elements.h"
#include "io/header.h"
#include "mezzo/io.h"

using namespace mezzo;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

// Requires that the header, written as text and parsed again, is the same.
void check_round_trip(const io::SafeTensors& file, std::uint64_t data_bytes) {
    const std::string text = io::header_text({.tensors = file.infos(), .metadata = file.metadata()});
    const io::Header again = io::parse_header(text, data_bytes, "again");
    require(again.metadata == file.metadata() && again.tensors.size() == file.infos().size());
    for (std::size_t i = 0; i < again.tensors.size(); ++i) {
        const io::TensorInfo &a = again.tensors[i], &b = file.infos()[i];
        require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.offset == b.offset);
    }
}

void read_all(const std::string& path) {
    const io::SafeTensors file(path);
    std::uint64_t bytes = 0;
    for (const io::TensorInfo& info : file.infos()) {
        require(file.contains(info.name) && &file.info(info.name) == &info);
        bytes += info.bytes;
        try {
            const Tensor tensor = file.tensor(info.name);
            require(tensor.shape() == info.shape && io::elements_of(tensor).bytes == info.bytes);
            if (tensor.numel() > 0) (void)tensor.to_vector<double>();
        } catch (const Error& error) {
            require(error.kind() == ErrorKind::dtype);
        }
    }
    check_round_trip(file, bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const int memory = memfd_create("file", 0);
    static const std::string path = "/proc/self/fd/" + std::to_string(memory);
    require(ftruncate(memory, 0) == 0 && pwrite(memory, data, size, 0) == ssize_t(size));
    try {
        read_all(path);
    } catch (const Error& error) {
        require(std::strlen(error.what()) < 2000);
    }
    return 0;
}

// Mutates the header and, most of the time, corrects its length: otherwise few inputs pass the first check.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
    if (seed % 8 == 0 || max_size < 16) return LLVMFuzzerMutate(data, size, max_size);
    const std::size_t tail = std::size_t(seed / 8 % 4) * 8;  // bytes left to the data
    std::size_t header = size > 8 ? size - 8 : 0;
    header = LLVMFuzzerMutate(data + 8, header, max_size - 8);
    const std::uint64_t length = header > tail ? header - tail : header;
    std::memcpy(data, &length, sizeof length);
    return header + 8;
}
