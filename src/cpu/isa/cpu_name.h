#pragma once

#include <string>

namespace mezzo::cpu {

// The processor's name and its family, model and stepping; "unknown processor" without the cpuid instruction.
std::string cpu_name();

}  // namespace mezzo::cpu
