#pragma once

#include <string>

namespace mezzo::cpu {

// The processor's name and its family, model and stepping; "unknown processor" if it has no name.
std::string cpu_name();

}  // namespace mezzo::cpu
