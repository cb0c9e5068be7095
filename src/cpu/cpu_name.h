#pragma once

#include <string>

namespace mezzo::cpu {

// The processor's name and its family, model and stepping; "unknown processor" where it does not tell.
std::string cpu_name();

}  // namespace mezzo::cpu
