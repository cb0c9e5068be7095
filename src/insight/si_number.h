// Formats numbers for tables.
#pragma once

#include <string>

#include <fmt/format.h>

namespace mezzo::insight {

// Formats a number with an SI prefix: "1.50 MB", "12 B".
inline std::string scaled(double number, const char* unit) {
    const char* const prefixes[] = {"", "k", "M", "G", "T", "P"};
    int power = 0;
    while (number >= 1000 && power < 5) number /= 1000, ++power;
    return fmt::format("{:.{}f} {}{}", number, power == 0 ? 0 : 2, prefixes[power], unit);
}

}  // namespace mezzo::insight
