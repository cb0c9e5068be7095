// Reads and writes safetensors files: an unsigned 64-bit length, a JSON header of that length, the data
// (format of huggingface/safetensors). Elements are little-endian, as on all machines that mezzo supports.
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/sorting.h"
#include "core/system/file_kind.h"
#include "core/visit_dtype.h"
#include "io/crc.h"
#include "io/digest.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/header.h"
#include "io/json.h"

namespace mezzo::io {

// Files are read and written in pieces that are small enough to stay in the cache until their digest is
// computed.
static constexpr std::size_t cache_piece = 1 << 18;

static_assert(std::endian::native == std::endian::little);

struct SafeTensorsData {
    std::string where;  // "safetensors: PATH"
    InputFile file;
    std::uint64_t data_begin = 0;
    Header header = {};
    std::vector<std::uint32_t> digests = {};  // of header.tensors, or empty
    std::vector<std::size_t> by_name = {};    // positions in header.tensors

    const TensorInfo* find(std::string_view name) const {
        const auto less = [&](std::uint32_t i, std::string_view n) { return header.tensors[i].name < n; };
        const auto at = std::lower_bound(by_name.begin(), by_name.end(), name, less);
        return at != by_name.end() && header.tensors[*at].name == name ? &header.tensors[*at] : nullptr;
    }
    const TensorInfo& get(std::string_view name) const {
        const TensorInfo* const info = find(name);
        if (!info)
            fail(ErrorKind::value, where, ": no tensor ", shown(name), " among ", header.tensors.size());
        return *info;
    }
    void read_header();
    void read_bytes(const TensorInfo& info, void* to) const;
    Tensor read(const TensorInfo& info) const;
};

void SafeTensorsData::read_header() {
    check(file.size() >= 8, ErrorKind::io, where, ": ", file.size(),
          " bytes; a safetensors file has at least 8");
    // A header of the format begins with a brace after its length. For other known formats the error names
    // the format.
    if (const std::string begin = begin_of(file); begin.size() < 9 || begin[8] != '{')
        if (const std::string kind = file_kind(begin); !kind.empty())
            fail(ErrorKind::io, where, ": this is no safetensors file: it is ", kind);
    std::uint64_t length = 0;
    file.read(0, &length, 8);
    check(length <= max_header_bytes, ErrorKind::io, where, ": the header claims ", std::to_string(length),
          " bytes; at most ", max_header_bytes, " are read");
    check(length <= file.size() - 8, ErrorKind::io, where, ": the header claims ", length, " bytes, only ",
          file.size() - 8, " follow; the file is truncated or no safetensors file");
    std::string text(std::size_t(length), '\0');
    file.read(8, text.data(), text.size());
    data_begin = 8 + length;
    header = parse_header(text, file.size() - data_begin, where);
    digests = take_digests(header, where);
    by_name = sorted_indices(header.tensors.size(), [this](std::size_t a, std::size_t b) {
        return header.tensors[a].name < header.tensors[b].name;
    });
}

// Reads the bytes of one of header.tensors and compares them with their digest, if there is one.
void SafeTensorsData::read_bytes(const TensorInfo& info, void* to) const {
    const std::uint64_t begin = data_begin + info.offset;
    if (digests.empty()) return file.read(begin, to, std::size_t(info.bytes));
    std::uint32_t digest = 0;
    for (std::uint64_t done = 0; done < info.bytes; done += cache_piece) {
        const auto bytes = std::size_t(std::min<std::uint64_t>(cache_piece, info.bytes - done));
        char* const at = static_cast<char*>(to) + done;
        file.read(begin + done, at, bytes);
        digest = crc32(digest, at, bytes);
    }
    const std::uint32_t said = digests[std::size_t(&info - header.tensors.data())];
    if (digest != said)
        fail(ErrorKind::io, where, ": tensor ", shown(info.name), " at byte ", begin, ": its ", info.bytes,
             " bytes do not have the CRC-32 that was written; ", damage_hint);
}

Tensor SafeTensorsData::read(const TensorInfo& info) const {
    constexpr std::string_view widened[] = {"I16", "U16", "U32", "U64"};
    if (std::find(std::begin(widened), std::end(widened), info.dtype) != std::end(widened)) {
        const FileDtype& type = *find_file_dtype(info.dtype);
        const Tensor result = empty(info.shape, {.dtype = type.bits < 32 ? int32 : int64});
        std::vector<char> raw(std::size_t(info.bytes));
        read_bytes(info, raw.data());
        widen_integers(where + ": tensor " + shown(info.name), raw, info.dtype[0] == 'I', type.bits / 8,
                       result);
        return result;
    }
    const std::optional<Dtype> dtype = find_file_dtype(info.dtype)->dtype;
    check(dtype.has_value(), ErrorKind::dtype, where, ": tensor ", shown(info.name), " is ", info.dtype,
          "; mezzo reads F16, BF16, F32, F64, F8_E4M3, F8_E5M2, F8_E8M0, BOOL and integers");
    const Tensor result = empty(info.shape, {.dtype = *dtype});
    const Elements to = elements_of(result);
    if (*dtype != boolean) {
        read_bytes(info, to.data);
        return result;
    }
    std::vector<unsigned char> raw(to.bytes);
    read_bytes(info, raw.data());
    for (unsigned char& byte : raw) byte = byte != 0;
    if (!raw.empty()) std::memcpy(to.data, raw.data(), raw.size());
    return result;
}

SafeTensors::SafeTensors(const std::string& path)
    : data_(new SafeTensorsData{.where = "safetensors: " + path, .file = InputFile("safetensors", path)}) {
    try {
        data_->read_header();
    } catch (...) {
        delete data_;
        throw;
    }
}
SafeTensors::~SafeTensors() { delete data_; }

SafeTensorsData& SafeTensors::opened() const {
    check(data_ != nullptr, ErrorKind::state, "SafeTensors: the file has been moved to another object");
    return *data_;
}

const std::vector<TensorInfo>& SafeTensors::infos() const { return opened().header.tensors; }

std::vector<std::string> SafeTensors::names() const {
    std::vector<std::string> result;
    for (const TensorInfo& info : infos()) result.push_back(info.name);
    return result;
}

bool SafeTensors::contains(std::string_view name) const { return opened().find(name) != nullptr; }
const TensorInfo& SafeTensors::info(std::string_view name) const { return opened().get(name); }
const Metadata& SafeTensors::metadata() const { return opened().header.metadata; }
Tensor SafeTensors::tensor(std::string_view name) const { return opened().read(opened().get(name)); }

StateDict SafeTensors::state_dict() const {
    StateDict result;
    for (const TensorInfo& info : infos()) result.emplace_back(info.name, opened().read(info));
    return result;
}

namespace {

using Entry = std::pair<std::string, Tensor>;

void check_name(const std::string& path, std::string_view name, const char* what) {
    if (const std::size_t bad = first_invalid_utf8(name); bad < name.size())
        fail(ErrorKind::value, "save_safetensors: ", path, ": the ", what, " at byte ", bad,
             " is no valid UTF-8");
}

// Returns the entries in the order of the data. Throws Error(value) unless all can be written.
std::vector<const Entry*> ordered(const std::string& path, const StateDict& state) {
    std::vector<const Entry*> entries;
    for (const Entry& entry : state) {
        check_name(path, entry.first, "name of a tensor");
        if (!entry.second.defined())
            fail(ErrorKind::value, "save_safetensors: ", path, ": tensor ", shown(entry.first),
                 " is undefined");
        check(entry.first != "__metadata__", ErrorKind::value, "save_safetensors: ", path,
              ": a tensor cannot be named \"__metadata__\"");
        entries.push_back(&entry);
    }
    sort_by(entries, [](const Entry* a, const Entry* b) { return a->first < b->first; });
    const auto twice = std::adjacent_find(
        entries.begin(), entries.end(), [](const Entry* a, const Entry* b) { return a->first == b->first; });
    if (twice != entries.end())
        fail(ErrorKind::value, "save_safetensors: ", path, ": two tensors are named ",
             shown((*twice)->first));
    sort_by(entries, [](const Entry* a, const Entry* b) {
        return file_dtype_rank(a->second.dtype()) > file_dtype_rank(b->second.dtype());
    });
    return entries;
}

void check_metadata(const std::string& path, const Metadata& metadata) {
    for (std::size_t i = 0; i < metadata.size(); ++i) {
        check_name(path, metadata[i].first, "name of a metadata entry");
        check_name(path, metadata[i].second, "text of a metadata entry");
        if (metadata[i].first.starts_with(digest_prefix))
            fail(ErrorKind::value, "save_safetensors: ", path, ": metadata ", shown(metadata[i].first),
                 ": names that begin with ", digest_prefix, " are those of the digests");
        for (std::size_t j = 0; j < i; ++j)
            if (metadata[i].first == metadata[j].first)
                fail(ErrorKind::value, "save_safetensors: ", path, ": two metadata entries are named ",
                     shown(metadata[i].first));
    }
}

// Writes the elements and returns their digest.
std::uint32_t write_digested(ReplacedFile& file, const Elements& from) {
    std::uint32_t digest = 0;
    for (std::size_t done = 0; done < from.bytes; done += cache_piece) {
        const char* const at = static_cast<const char*>(from.data) + done;
        const std::size_t bytes = std::min(cache_piece, from.bytes - done);
        digest = crc32(digest, at, bytes);
        file.write(at, bytes);
    }
    return digest;
}

}  // namespace

void save_safetensors(const std::string& path, const StateDict& state, const Metadata& metadata) {
    check_metadata(path, metadata);
    const std::vector<const Entry*> entries = ordered(path, state);
    Header header{.tensors = {}, .metadata = metadata};
    std::uint64_t offset = 0;
    for (const Entry* entry : entries) {
        const auto& [name, tensor] = *entry;
        const std::uint64_t bytes = std::uint64_t(tensor.numel()) * size_of(tensor.dtype());
        header.tensors.push_back({name, file_dtype_name(tensor.dtype()), tensor.shape(), offset, bytes});
        offset += bytes;
    }
    // The header contains the tensors' digests, which are computed while the tensors are written: it is
    // written with zeros first, and rewritten at the end.
    std::vector<std::uint32_t> digests(entries.size());
    Header digested = header;
    add_digests(digested, digests);
    const std::string text = header_text(digested);
    check(text.size() <= max_header_bytes, ErrorKind::value, "save_safetensors: ", path, ": the header of ",
          entries.size(), " tensors has ", text.size(), " bytes; the format allows ", max_header_bytes);

    const NoGrad plain;
    ReplacedFile file("save_safetensors", path);
    const std::uint64_t length = text.size();
    file.write(&length, sizeof length);
    file.write(text);
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const Tensor host = entries[i]->second.detach().to(cpu_device).contiguous();
        const Elements from = elements_of(host);
        digests[i] = write_digested(file, from);
    }
    add_digests(header, digests);
    file.rewrite(sizeof length, header_text(header));
    file.commit();
}

}  // namespace mezzo::io
