// Stops a compiler that is not set to C++20 with one line, ahead of everything that it would not understand.
#pragma once

#if __cplusplus < 202002L
#error "mezzo needs C++20: compile with -std=c++20 (g++ 12, clang 14, or newer)"
#include <mezzo needs C++20>  // is not there: ends the compilation, which #error alone does not
#endif
