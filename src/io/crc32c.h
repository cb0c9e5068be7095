// CRC-32C (Castagnoli), as TFRecord files use it.
#pragma once

#include <cstdint>
#include <string_view>

namespace mezzo::io {

std::uint32_t crc32c(std::string_view bytes);
// CRC-32C in the form that TFRecord stores, which mixes it so that checksums of data with checksums are not
// trivial.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace mezzo::io
