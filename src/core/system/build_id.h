// Build ID of the running library.
#pragma once

#include <string>

namespace mezzo {

// Returns the GNU build ID of the program or library that this code is a part of, in hexadecimal; "" if it
// has none, as where programs are no ELF files. Another build of the same version has another ID. libmezzo.so
// always has one; a program that links libmezzo.a has one unless it was linked with --build-id=none.
std::string build_id();

}  // namespace mezzo
