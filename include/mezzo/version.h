// Version of mezzo: of the headers as macros, of the library as a function.
//
//   static_assert(MEZZO_VERSION >= 100);  // 0.1.0
//   std::cout << version() << '\n';
#pragma once

#include "mezzo/cpp20.h"

// Semantic versioning: before 1.0.0 a new minor version may change the interface, a new patch version only
// fixes errors. tools/check_tree.py compares these numbers with meson.build and docs/project/changelog.md.
#define MEZZO_VERSION_MAJOR 0
#define MEZZO_VERSION_MINOR 1
#define MEZZO_VERSION_PATCH 0
// One number for comparisons: #if MEZZO_VERSION >= 10203 is true from version 1.2.3 on.
#define MEZZO_VERSION (MEZZO_VERSION_MAJOR * 10000 + MEZZO_VERSION_MINOR * 100 + MEZZO_VERSION_PATCH)

#pragma GCC visibility push(default)

namespace mezzo {

// The version of the library that the program runs with, such as "0.1.0". With a shared library it may be
// newer than the headers that the program was compiled with. Never throws; valid for the process' life.
[[nodiscard]] const char* version() noexcept;

}  // namespace mezzo

#pragma GCC visibility pop
