// tools/gpu_trace.h on the emulated device: linked instead of tools/gpu_trace.cpp. A kernel's name comes
// from the program's own symbols, because templates and unnamed namespaces are in no table of the loader's.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <utility>

#include "tests/emulation/engine.h"
#include "tools/gpu_trace.h"

extern "C" const char __executable_start;  // by the linker

namespace {

std::vector<mezzo::DeviceWork> work;

// The demangled names of the program's functions by their distance from its start.
std::map<std::uintptr_t, std::string> read_symbols() {
    std::map<std::uintptr_t, std::string> names;
    FILE* const list = popen("nm -C --defined-only /proc/$PPID/exe", "r");
    if (list == nullptr) throw std::runtime_error("gpu trace: cannot run nm");
    char line[4096];
    while (std::fgets(line, sizeof line, list) != nullptr) {
        char* rest = nullptr;
        const auto address = static_cast<std::uintptr_t>(std::strtoull(line, &rest, 16));
        std::string name = rest;
        if (name.size() < 4) continue;
        name = name.substr(3, name.find('\n') - 3);  // after " t "
        names.emplace(address, name);
    }
    if (pclose(list) != 0) throw std::runtime_error("gpu trace: nm cannot read the program's symbols");
    return names;
}

std::string name_of(const mezzo::emulation::Work& w) {
    static const std::map<std::uintptr_t, std::string> names = read_symbols();
    if (w.kernel == nullptr) return w.what;
    const auto distance =
        reinterpret_cast<std::uintptr_t>(w.kernel) - reinterpret_cast<std::uintptr_t>(&__executable_start);
    const auto found = names.find(distance);
    return found != names.end() ? found->second : "unknown kernel";
}

}  // namespace

void start_gpu_trace() {
    mezzo::emulation::on_work = [](const mezzo::emulation::Work& w) {
        const auto at = std::int64_t(1000 * work.size());  // each piece takes a microsecond, without gaps
        work.push_back({.name = name_of(w), .begin = at, .end = at + 1000});
    };
}

std::vector<mezzo::DeviceWork> take_gpu_trace() { return std::exchange(work, {}); }
