// The end of the program: which kernels have run, and exit status 1 if anything has been reported, so that a
// case that catches the error of a launch does not hide a finding.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/ptx/runtime.h"

namespace mezzo::ptx {
namespace {

// "NAME LAUNCHES EXECUTED INSTRUCTIONS" per registered kernel.
void write_coverage(std::FILE* file) {
    std::map<std::string, const Kernel*> launched;
    for (const std::string& name : registered_kernels()) launched[name] = nullptr;
    for (const FatBinary* const binary : fat_binaries()) {
        if (!binary->module) continue;
        for (const auto& [name, kernel] : binary->module->decoded())
            if (kernel && kernel->launches != 0) launched[name] = kernel.get();
    }
    for (const auto& [name, kernel] : launched) {
        std::size_t executed = 0, all = 0;
        if (kernel != nullptr) {
            const auto has_run = [](const Instruction& i) { return i.executions != 0; };
            executed = std::size_t(std::count_if(kernel->code.begin(), kernel->code.end(), has_run));
            all = kernel->code.size();
        }
        std::fprintf(file, "%s %llu %zu %zu\n", name.c_str(),
                     kernel != nullptr ? static_cast<unsigned long long>(kernel->launches) : 0ull, executed,
                     all);
    }
}

void finish() {
    if (const char* const path = std::getenv("MEZZO_PTX_COVERAGE")) {
        std::FILE* const file = std::fopen(path, "w");
        if (file == nullptr) {
            std::fprintf(stderr, "%s cannot be written\n", path);
            ++totals.reports;
        } else {
            write_coverage(file);
            std::fclose(file);
        }
    }
    if (totals.reports == 0) return;
    std::fprintf(stderr, "PTX: %llu reports\n", static_cast<unsigned long long>(totals.reports));
    std::fflush(nullptr);
    std::_Exit(1);
}

[[maybe_unused]] const int registered = std::atexit(finish);

}  // namespace
}  // namespace mezzo::ptx
