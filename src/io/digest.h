// Digests of a safetensors file in its metadata: CRC-32 of each tensor's bytes and of the header. A single
// flipped bit always changes a CRC-32, and so do flipped bits within a run of 32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/header.h"

namespace mezzo::io {

// Prefix of metadata names that are digests; users can neither read nor write these entries.
inline constexpr std::string_view digest_prefix = "mezzo.crc32.";

// Adds the entries for the tensors' digests, which are in the order of the data. The length of the header's
// text does not depend on the digests.
void add_digests(Header& header, const std::vector<std::uint32_t>& tensors);

// Removes the digests from a header that was read. Returns the tensors' digests in the order of the data, or
// nothing for a file without digests. Throws Error(io) if the header is not the one that was written. Names,
// dtypes, shapes, offsets and metadata are compared; white space and the order of the metadata may differ.
std::vector<std::uint32_t> take_digests(Header& header, const std::string& where);

// The end of all error messages about digests.
inline constexpr const char* damage_hint =
    "the file is damaged, or a program that does not know these digests has changed it";

}  // namespace mezzo::io
