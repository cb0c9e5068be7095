// A tool that NVTX attaches (NVTX_INJECTION64_PATH); it records the ranges of the domain "mezzo".
#include <nvtx3/nvToolsExt.h>

#include <cstring>
#include <string>

namespace {

int domain_handle;
std::string ranges;
int depth = 0;

nvtxDomainHandle_t create_domain(const char* name) {
    return std::strcmp(name, "mezzo") == 0 ? reinterpret_cast<nvtxDomainHandle_t>(&domain_handle) : nullptr;
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
    if (domain != reinterpret_cast<nvtxDomainHandle_t>(&domain_handle)) return -1;
    ranges += std::string(2 * std::size_t(depth), ' ') + range->message.ascii + "\n";
    return depth++;
}
int pop(nvtxDomainHandle_t domain) {
    return domain == reinterpret_cast<nvtxDomainHandle_t>(&domain_handle) ? --depth : -1;
}

template <class F> void replace(NvtxFunctionTable table, int id, F* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

// A line per range since the last call, indented by its nesting depth.
EXPORTED const char* nvtx_test_ranges() {
    static std::string taken;
    taken.swap(ranges);
    ranges.clear();
    return taken.c_str();
}
EXPORTED int nvtx_test_depth() { return depth; }

// NVTX calls it when the program first uses NVTX.
EXPORTED int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
    const auto* const callbacks =
        static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table = nullptr;
    unsigned size = 0;
    if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
        return 0;
    replace(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
    replace(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
    replace(table, NVTX_CBID_CORE2_DomainRangePop, pop);
    return 1;
}
}
