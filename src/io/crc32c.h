// CRC-32C (Castagnoli), as TFRecord files use it.
#pragma once

#include <cstdint>
#include <string_view>

namespace mezzo::io {

std::uint32_t crc32c(std::string_view bytes);
// What TFRecord stores, so that the checksum of a text with checksums is not trivial.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace mezzo::io
