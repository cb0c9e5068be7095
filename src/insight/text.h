// Numbers for tables.
#pragma once

#include <string>

namespace mezzo::insight {

// A number with the prefix of its thousands: "1.50 MB", "12 B".
std::string scaled(double number, const char* unit);

}  // namespace mezzo::insight
