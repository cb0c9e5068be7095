// Which processors this process may run on.
#pragma once

#include <string>

namespace mezzo {

// How many these are, at least 1. Where the system cannot tell which (it is not Linux), all of the machine's.
int available_processors();

// Which these are, in hexadecimal, one character for four of them from number 0 on, without zeros at the end. Empty where the
// system cannot tell.
std::string processor_set();

}  // namespace mezzo
