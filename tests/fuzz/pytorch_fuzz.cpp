// libFuzzer target of PyTorch's files: any bytes as a file, and any bytes as the pickle of an archive or of a
// plain file with two storages. Each is refused with an Error, or read whole.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "mezzo/interchange/pytorch.h"
#include "tests/support/torch_files.h"

using namespace mezzo;

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

std::string file_of(const std::string& bytes) {
    if (bytes.empty()) return bytes;
    const std::string rest = bytes.substr(1), data(64, '\x3f');
    switch (bytes[0]) {
        case 0:
            return test::torch_archive(rest, {{"0", data}, {"1", ""}}, false);
        case 1:
            return test::torch_plain_file(rest, {{"0", data, 16}, {"1", "", 0}});
        default:
            return bytes;
    }
}

template <class Read> void refuse_or_read(const Read& read) {
    try {
        read();
    } catch (const Error& error) {
        require(std::strlen(error.what()) < 3000);
    }
}

void read_all(const io::PytorchValue& file) {
    require(file.to_string().size() < 1000000);
    refuse_or_read([&] {
        for (const auto& [name, tensor] : file.state_dict())
            if (tensor.numel() < 1000)
                require(std::int64_t(tensor.to_vector<double>().size()) == tensor.numel());
    });
    refuse_or_read([&] {
        for (const std::string& name : file.names())
            if (file.contains(name)) (void)file[name].kind();
    });
    refuse_or_read([&] {
        for (std::int64_t i = 0; i < std::min<std::int64_t>(file.size(), 100); ++i) {
            const io::PytorchValue item = file[i];
            refuse_or_read([&] { (void)item.number(); });
            refuse_or_read([&] { (void)item.text(); });
            refuse_or_read([&] { (void)item.tensor().shape(); });
        }
    });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const int memory = memfd_create("file", 0);
    static const std::string path = "/proc/self/fd/" + std::to_string(memory);
    const std::string file = file_of({reinterpret_cast<const char*>(data), size});
    require(ftruncate(memory, 0) == 0 && pwrite(memory, file.data(), file.size(), 0) == ssize_t(file.size()));
    refuse_or_read([&] { read_all(io::load_pytorch(path)); });
    return 0;
}
