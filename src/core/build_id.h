// Which build of the library runs.
#pragma once

#include <string>

namespace mezzo {

// The linker's number (GNU build ID) of the program or library that this code is a part of, in hexadecimal; "" if
// it has none, as where programs are no ELF files. Another build of the same version has another one. libmezzo.so always
// has it; a program that links libmezzo.a has it unless it was linked with --build-id=none.
std::string build_id();

}  // namespace mezzo
