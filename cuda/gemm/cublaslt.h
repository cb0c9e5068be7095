// The cuBLASLt functions, a plan's descriptors, and conversions between mezzo's and cuBLASLt's types and
// algorithms.
#pragma once

#include <cublasLt.h>

#include "cuda/gemm/lt.h"

namespace mezzo::cuda::lt {

struct Functions {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmulDescInit_internal) init_operation;
    decltype(&cublasLtMatmulDescSetAttribute) set_operation;
    decltype(&cublasLtMatrixLayoutInit_internal) init_layout;
    decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
    decltype(&cublasLtMatmulPreferenceInit_internal) init_preference;
    decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
    decltype(&cublasLtMatmulAlgoCheck) check_algo;
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_algo;
    decltype(&cublasLtMatmulAlgoConfigSetAttribute) set_algo;
    decltype(&cublasLtMatmulAlgoGetIds) algo_ids;
    decltype(&cublasLtMatmulAlgoInit) init_algo;
    decltype(&cublasLtMatmulAlgoCapGetAttribute) capability;
    decltype(&cublasLtGetVersion) version;
    decltype(&cublasLtGetStatusName) status_name;
};

// The library, opened at the first call. Throws Error(backend) if it cannot be opened.
const Functions& functions();

struct Plan {
    Problem problem;
    cublasLtMatmulDescOpaque_t operation{};
    cublasLtMatrixLayoutOpaque_t a{}, b{}, d{};
    // The last call for this plan that gave nothing, and its status; null if there was none.
    const char* refusing_call = nullptr;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
};

// Throws Error(backend) if the call was no success.
void ok(cublasStatus_t status, const char* call);

// The current device's handle. Throws Error(memory) or Error(backend) if the library cannot create it.
cublasLtHandle_t handle();

cudaDataType_t data_type(Dtype dtype);
cublasComputeType_t compute_type(const Problem& p);
cudaDataType_t scale_type(const Problem& p);

cublasLtMatmulAlgo_t native(const Algo& algo);
void store(const cublasLtMatmulAlgo_t& from, Algo& algo);

}  // namespace mezzo::cuda::lt
