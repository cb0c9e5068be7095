// The functions of cuBLASLt. The library is opened when the first plan is made, not linked: a program starts
// without it, and without the 200 MB that loading it costs.
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <string>

#include "cuda/gemm/cublaslt.h"
#include "mezzo/error.h"

namespace mezzo::cuda::lt {
namespace {

// The library of CUDA 13 first, then that of CUDA 12 or of an unversioned installation. MEZZO_CUBLASLT, a
// file or a directory, comes before all.
void* open_library() {
    std::array<std::string, 5> names{"", "", "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    if (const char* path = std::getenv("MEZZO_CUBLASLT")) {
        names[0] = path;
        names[1] = names[0] + "/libcublasLt.so.13";
    }
    std::string reason;
    for (const std::string& name : names) {
        if (name.empty()) continue;
        if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
        if (const char* text = dlerror()) reason += std::string("; ") + text;
    }
    fail(ErrorKind::backend, "cuda: cuBLASLt cannot be opened", reason,
         "; put its directory into LD_LIBRARY_PATH or MEZZO_CUBLASLT");
}

template <class F> void find(void* library, const char* name, F& function) {
    void* const symbol = dlsym(library, name);
    check(symbol != nullptr, ErrorKind::backend, "cuda: the cuBLASLt found has no ", name,
          "; mezzo needs version 12 or newer");
    function = reinterpret_cast<F>(symbol);
}

}  // namespace

const Functions& functions() {
    static const Functions table = [] {
        void* const library = open_library();
        Functions f{};
        find(library, "cublasLtCreate", f.create);
        find(library, "cublasLtMatmul", f.matmul);
        find(library, "cublasLtMatmulAlgoGetHeuristic", f.heuristic);
        find(library, "cublasLtMatmulDescInit_internal", f.init_operation);
        find(library, "cublasLtMatmulDescSetAttribute", f.set_operation);
        find(library, "cublasLtMatrixLayoutInit_internal", f.init_layout);
        find(library, "cublasLtMatrixLayoutSetAttribute", f.set_layout);
        find(library, "cublasLtMatmulPreferenceInit_internal", f.init_preference);
        find(library, "cublasLtMatmulPreferenceSetAttribute", f.set_preference);
        find(library, "cublasLtMatmulAlgoCheck", f.check_algo);
        find(library, "cublasLtMatmulAlgoConfigGetAttribute", f.get_algo);
        find(library, "cublasLtMatmulAlgoConfigSetAttribute", f.set_algo);
        find(library, "cublasLtMatmulAlgoGetIds", f.algo_ids);
        find(library, "cublasLtMatmulAlgoInit", f.init_algo);
        find(library, "cublasLtMatmulAlgoCapGetAttribute", f.capability);
        find(library, "cublasLtGetVersion", f.version);
        find(library, "cublasLtGetStatusName", f.status_name);
        return f;
    }();
    return table;
}

}  // namespace mezzo::cuda::lt
