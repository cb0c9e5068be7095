// Registration of kernels by nvcc's host code, and the PTX within fat binaries.
#include <dlfcn.h>

#include <cstring>

#include "tests/ptx/runtime.h"

namespace mezzo::ptx {
namespace {

// Argument of __cudaRegisterFatBinary().
struct Wrapper {
    int magic, version;
    const void* data;
    void* file;
};

struct Header {
    std::uint32_t magic;
    std::uint16_t version, bytes;
    std::uint64_t size;  // of all entries
};
constexpr std::uint32_t header_magic = 0xBA55ED50;

struct Entry {
    std::uint16_t kind, unknown;
    std::uint32_t header_bytes;
    std::uint64_t size;
    std::uint32_t compressed_size, more_unknown;
    std::uint16_t minor, major;
    std::uint32_t architecture, name_offset, name_bytes;
    std::uint64_t flags, zero, plain_size;
};
static_assert(sizeof(Entry) == 64);
constexpr std::uint16_t ptx_kind = 1;
constexpr std::uint64_t compressed_by_lz4 = 0x2000, compressed_by_zstd = 0x8000;

template <class T> T read(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// libzstd is opened at run time: the tests need no package with its header.
void decompress(std::string& to, const char* from, std::size_t bytes) {
    void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Fault("PTX: fat binary: libzstd.so.1 cannot be opened");
    using Decompress = std::size_t (*)(void*, std::size_t, const void*, std::size_t);
    const auto decompress_all = reinterpret_cast<Decompress>(dlsym(library, "ZSTD_decompress"));
    if (decompress_all == nullptr || decompress_all(to.data(), to.size(), from, bytes) != to.size())
        throw Fault("PTX: fat binary: damaged");
}

std::string ptx_of(const char* entry, const Entry& e) {
    const char* const payload = entry + e.header_bytes;
    if ((e.flags & compressed_by_lz4) != 0)
        throw Fault("PTX: fat binary: only zstd's compression is supported, which nvcc has from 12.8 on");
    std::string text(payload, e.size);
    if ((e.flags & compressed_by_zstd) != 0) {
        text.assign(e.plain_size, '\0');
        decompress(text, payload, e.compressed_size != 0 ? e.compressed_size : e.size);
    }
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
}

// The newest PTX that the device takes; "" if there is none.
std::string read_ptx(const void* data) {
    const char* at = static_cast<const char*>(data);
    const Header header = read<Header>(at);
    if (header.magic != header_magic) throw Fault("PTX: fat binary: unknown format");
    std::string text;
    std::uint32_t newest = 0;
    at += header.bytes;
    for (const char* const end = at + header.size; at < end;) {
        const Entry entry = read<Entry>(at);
        if (entry.kind == ptx_kind && entry.architecture > newest &&
            entry.architecture <= options.capability) {
            text = ptx_of(at, entry);
            newest = entry.architecture;
        }
        at += entry.header_bytes + entry.size;
    }
    return text;
}

std::vector<FatBinary*>& binaries() {
    static auto& all = *new std::vector<FatBinary*>;
    return all;
}
std::map<const void*, Function>& functions() {
    static auto& all = *new std::map<const void*, Function>;
    return all;
}

}  // namespace

Module* FatBinary::get() {
    if (!read) {
        read = true;
        if (const std::string text = read_ptx(data); !text.empty()) module = std::make_unique<Module>(text);
    }
    return module.get();
}

const std::vector<FatBinary*>& fat_binaries() { return binaries(); }

Function* find_function(const void* host) {
    const auto it = functions().find(host);
    return it == functions().end() ? nullptr : &it->second;
}

std::vector<std::string> registered_kernels() {
    std::vector<std::string> names;
    for (const auto& [host, function] : functions()) names.push_back(function.name);
    return names;
}

}  // namespace mezzo::ptx

using namespace mezzo::ptx;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
    binaries().push_back(new FatBinary{static_cast<Wrapper*>(wrapper)->data, nullptr});
    return reinterpret_cast<void**>(binaries().back());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
    functions()[host] = Function{reinterpret_cast<FatBinary*>(binary), name};
}

}  // extern "C"
