// Files of torch.save(), put together byte by byte: pickles, archives, and the form before PyTorch 1.6.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/crc.h"

namespace mezzo::test {

inline std::string little_endian(std::uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += char(value >> 8 * i & 0xff);
    return text;
}

template <class T> std::string bytes_of(const std::vector<T>& values) {
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

// Opcodes of a pickle of protocol 2, appended one after the other.
class Pickle {
public:
    using Sizes = std::vector<std::int64_t>;

    Pickle& op(std::string_view bytes) {
        ops_ += bytes;
        return *this;
    }
    Pickle& text(std::string_view value) { return op("X").op(little_endian(value.size(), 4)).op(value); }
    Pickle& integer(std::int64_t value) { return op("\x8a\x08").op(little_endian(std::uint64_t(value), 8)); }
    Pickle& global(const std::string& module, const std::string& name) {
        return op("c" + module + "\n" + name + "\n");
    }
    Pickle& sizes(const Sizes& values) {
        op("(");
        for (const std::int64_t value : values) integer(value);
        return op("t");
    }
    Pickle& storage(const std::string& type, std::string_view key, std::int64_t elements) {
        const std::size_t dot = type.rfind('.');
        return op("(")
            .text("storage")
            .global(type.substr(0, dot), type.substr(dot + 1))
            .text(key)
            .text("cpu")
            .integer(elements)
            .op("tQ");
    }
    // A tensor by _rebuild_tensor_v2.
    Pickle& tensor(const std::string& type, std::string_view key, std::int64_t elements, std::int64_t offset,
                   const Sizes& shape, const Sizes& strides) {
        global("torch._utils", "_rebuild_tensor_v2").op("(").storage(type, key, elements).integer(offset);
        return sizes(shape).sizes(strides).op("\x89").global("collections", "OrderedDict").op(")RtR");
    }
    const std::string& ops() const { return ops_; }
    std::string str() const { return "\x80\x02" + ops_ + "."; }

private:
    std::string ops_;
};

using Members = std::vector<std::pair<std::string, std::string>>;

// An archive of stored members.
inline std::string zip_archive(const Members& members, bool checksums = true) {
    std::string file, directory;
    for (const auto& [name, data] : members) {
        const std::uint32_t crc = checksums ? io::crc32(0, data.data(), data.size()) : 0;
        const std::string fields = std::string(8, '\0') + little_endian(crc, 4) +
                                   little_endian(data.size(), 4) + little_endian(data.size(), 4) +
                                   little_endian(name.size(), 2);
        directory += std::string("PK\1\2\0\0\0\0", 8) + fields + std::string(12, '\0') +
                     little_endian(file.size(), 4) + name;
        file += std::string("PK\3\4\0\0", 6) + fields + std::string(2, '\0') + name + data;
    }
    const std::string count = little_endian(members.size(), 2);
    return file + directory + std::string("PK\5\6\0\0\0\0", 8) + count + count +
           little_endian(directory.size(), 4) + little_endian(file.size(), 4) + std::string(2, '\0');
}

// An archive of torch.save().
inline std::string torch_archive(const std::string& pickle, const Members& storages, bool checksums = true,
                                 const std::string& byte_order = "little") {
    Members members = {{"archive/data.pkl", pickle}, {"archive/byteorder", byte_order}};
    for (const auto& [key, data] : storages) members.emplace_back("archive/data/" + key, data);
    members.emplace_back("archive/version", "3\n");
    return zip_archive(members, checksums);
}

// The pickles before the value in a file without an archive.
inline std::string plain_begin() {
    using namespace std::string_literals;
    return "\x80\x02\x8a\nl\xfc\x9c\x46\xf9\x20\x6a\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}X\x0d\0\0\0little_endian\x88s."s;
}
struct PlainStorage {
    std::string key, data;
    std::uint64_t elements;
};
// A file of torch.save() before PyTorch 1.6.
inline std::string torch_plain_file(const std::string& pickle, const std::vector<PlainStorage>& storages) {
    Pickle keys;
    keys.op("](");
    std::string data;
    for (const PlainStorage& storage : storages) {
        keys.text(storage.key);
        data += little_endian(storage.elements, 8) + storage.data;
    }
    return plain_begin() + pickle + keys.op("e").str() + data;
}

}  // namespace mezzo::test
