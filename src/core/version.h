// The version of the project in meson.build; tools/check_tree.py compares them.
#pragma once

namespace mezzo {

inline constexpr char project_version[] = "0.1.0";

}  // namespace mezzo
