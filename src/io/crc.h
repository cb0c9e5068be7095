// Cyclic redundancy checks of 32 bits: CRC-32 of zlib, gzip and ZIP, and CRC-32C (Castagnoli) of TFRecord.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/internal.h"

namespace mezzo::io {

// `before` is the CRC of the preceding bytes, 0 at the start.
MEZZO_INTERNAL std::uint32_t crc32(std::uint32_t before, const void* data, std::size_t bytes);
std::uint32_t crc32c(std::string_view bytes);
// CRC-32C in the form that TFRecord stores, which mixes it so that checksums of data with checksums are not
// trivial.
MEZZO_INTERNAL std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace mezzo::io
