// The names of entries in an optimizer's state_dict().
#pragma once

#include <string>

#include "optim/optimizer.h"

namespace mezzo::optim {

inline std::string group_key(std::size_t group, const std::string& name) {
    return "groups." + std::to_string(group) + "." + name;
}
inline std::string slot_key(std::size_t slot, const std::string& name) {
    return "state." + std::to_string(slot) + "." + name;
}

}  // namespace mezzo::optim
