#include "insight/si_number.h"

#include <fmt/format.h>

namespace mezzo::insight {

std::string scaled(double number, const char* unit) {
    const char* const prefixes[] = {"", "k", "M", "G", "T", "P"};
    int power = 0;
    while (number >= 1000 && power < 5) number /= 1000, ++power;
    return fmt::format("{:.{}f} {}{}", number, power == 0 ? 0 : 2, prefixes[power], unit);
}

}  // namespace mezzo::insight
