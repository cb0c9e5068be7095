// Division of a length into parts of one size.
#pragma once

#include <cstdint>

namespace mezzo {

// Number of parts of `size` in n; the last one may be smaller.
constexpr std::int64_t parts_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// n rounded up to a multiple of `unit`.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return parts_of(n, unit) * unit; }

}  // namespace mezzo
