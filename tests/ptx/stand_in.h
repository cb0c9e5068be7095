// Functions of the program that the stand-in for cuBLASLt, a shared object, calls.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace mezzo::ptx {

struct StandInHooks {
    void (*enqueue)(void* stream, std::function<void()> work);
    void (*mark_written)(const void* to, std::size_t bytes);
    int (*capability)();                      // compute capability of the device, times ten
    void (*misuse)(const std::string& what);  // throws
};

}  // namespace mezzo::ptx
