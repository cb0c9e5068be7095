// Ends the compilation with one clear error if the compiler is not set to C++20.
#pragma once

#if __cplusplus < 202002L
#error "mezzo needs C++20: compile with -std=c++20 (g++ 12, clang 14, or newer)"
#include <mezzo needs C++20>  // does not exist: ends the compilation, which #error alone does not
#endif
