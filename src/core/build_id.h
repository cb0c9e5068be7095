// Which build of the library runs.
#pragma once

#include <string>

namespace mezzo {

// The linker's number (GNU build ID) of the program or library that this code is a part of, in hexadecimal; "" if
// it has none. Another build of the same version has another one.
std::string build_id();

}  // namespace mezzo
