// Formats numbers for tables.
#pragma once

#include <string>

namespace mezzo::insight {

// Formats a number with an SI prefix: "1.50 MB", "12 B".
std::string scaled(double number, const char* unit);

}  // namespace mezzo::insight
