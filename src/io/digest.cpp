#include "io/digest.h"

#include <functional>

#include "core/sorting.h"
#include "io/crc.h"
#include "io/json.h"
#include "mezzo/error.h"

namespace mezzo::io {

namespace {

// A file has both or neither, so that a damaged name is detected.
constexpr const char *tensors_key = "mezzo.crc32.tensors", *header_key = "mezzo.crc32.header";

std::string in_hex(std::uint32_t digest) {
    std::string text;
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[digest >> shift & 15];
    return text;
}

// Returns the digest of everything in the header except its own entry. Metadata are sorted, so that their
// order in the file does not matter.
std::uint32_t header_digest(Header header) {
    sort_by(header.metadata, std::less<>());
    sort_by_place(header.tensors);
    const std::string text = header_text(header);
    return crc32(0, text.data(), text.size());
}

std::uint32_t parse_digest(std::string_view text, const std::string& where) {
    std::uint32_t digest = 0;
    bool good = text.size() == 8;
    for (const char c : text) {
        const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
        good = good && (digit || letter);
        digest = digest << 4 | std::uint32_t(digit ? c - '0' : c - 'a' + 10) % 16;
    }
    check(good, ErrorKind::io, where, ": ", digest_prefix, "…: ", shown(text),
          " is no digest of eight hexadecimal digits; ", damage_hint);
    return digest;
}

}  // namespace

void add_digests(Header& header, const std::vector<std::uint32_t>& tensors) {
    std::string all;
    for (const std::uint32_t digest : tensors) all += (all.empty() ? "" : " ") + in_hex(digest);
    header.metadata.emplace_back(tensors_key, std::move(all));
    header.metadata.emplace_back(header_key, in_hex(header_digest(header)));
}

std::vector<std::uint32_t> take_digests(Header& header, const std::string& where) {
    std::string tensors_text, header_text;
    std::size_t found = 0;
    Metadata others;
    Header digested{.tensors = header.tensors, .metadata = {}};
    for (const auto& entry : header.metadata) {
        const bool own = entry.first == header_key;
        if (!own) digested.metadata.push_back(entry);
        if (!entry.first.starts_with(digest_prefix)) {
            others.push_back(entry);
            continue;
        }
        check(own || entry.first == tensors_key, ErrorKind::io, where, ": unknown metadata ",
              shown(entry.first), "; ", damage_hint);
        (own ? header_text : tensors_text) = entry.second;
        ++found;
    }
    if (found == 0) return {};
    check(found == 2, ErrorKind::io, where, ": only one of the metadata ", tensors_key, " and ", header_key,
          " is there; ", damage_hint);
    const std::uint32_t is = header_digest(std::move(digested)), said = parse_digest(header_text, where);
    check(is == said, ErrorKind::io, where, ": the header has CRC-32 ", in_hex(is), ", written was ",
          in_hex(said), "; ", damage_hint);
    std::vector<std::uint32_t> digests;
    for (std::size_t at = 0; at < tensors_text.size(); at += 9)
        digests.push_back(parse_digest(std::string_view(tensors_text).substr(at, 8), where));
    check(digests.size() == header.tensors.size(), ErrorKind::io, where, ": ", digests.size(),
          " digests for ", header.tensors.size(), " tensors; ", damage_hint);
    header.metadata = std::move(others);
    return digests;
}

}  // namespace mezzo::io
