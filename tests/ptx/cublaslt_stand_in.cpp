// Shared object instead of libcublasLt.so: tests/emulation/cublaslt.cpp and lt_product.cpp, compiled
// against NVIDIA's header, over memory and streams of the PTX machine. With MEZZO_PTX_PRODUCTS=plain it
// refuses all epilogues, so that mezzo's kernels compute them. With MEZZO_PTX_PRODUCTS=none it has no
// algorithm, so that mezzo's own kernel multiplies.
#include <cstdlib>
#include <string_view>

#include "cuda/gemm/cublaslt.h"
#include "mezzo/error.h"
#include "tests/emulation/fake_lt.h"
#include "tests/emulation/lt_device.h"
#include "tests/ptx/stand_in.h"

namespace {
const mezzo::ptx::StandInHooks* hooks = nullptr;
}

namespace mezzo::emulation::lt_device {

bool has_memory(std::size_t) { return true; }
int capability() { return hooks->capability(); }
bool is_idle() { return false; }
void enqueue(void* stream, const std::string&, const std::function<void()>& work) {
    hooks->enqueue(stream, work);
}
void mark_written(const void* from, std::size_t bytes) { hooks->mark_written(from, bytes); }
void pass_time(const cuda::lt::Problem&, int) {}
void misuse(const std::string& what) {
    hooks->misuse(what);
    std::abort();
}

}  // namespace mezzo::emulation::lt_device

// For the library's inline functions. The shared object does not link the library.
void mezzo::detail::fail(ErrorKind, std::initializer_list<Item>) {
    emulation::lt_device::misuse("a dtype without products");
}
void mezzo::detail::unknown_dtype(int number) { fail(ErrorKind::dtype, {number}); }

extern "C" {

void mezzo_stand_in_hooks(const mezzo::ptx::StandInHooks* of) {
    hooks = of;
    const char* const text = std::getenv("MEZZO_PTX_PRODUCTS");
    const std::string_view products = text != nullptr ? text : "";
    mezzo::emulation::fake_lt.no_fused = products == "plain";
    mezzo::emulation::fake_lt.no_algorithm = products == "none";
}

// The algorithms have no properties, and there are none but those of the heuristic.
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t, const void*,
                                                    std::size_t) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                        cudaDataType_t, cudaDataType_t, cudaDataType_t, int, int[],
                                        int* found) {
    *found = 0;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, int,
                                      cublasLtMatmulAlgo_t*) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t*,
                                                 cublasLtMatmulAlgoCapAttributes_t, void*, std::size_t,
                                                 std::size_t*) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // extern "C"
