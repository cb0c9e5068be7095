// Implements lt.h with cuBLASLt: descriptors, proposals and calls.
#include "cuda/gemm/cublaslt.h"

#include <array>
#include <mutex>
#include <string>

#include "core/memory/allocator.h"
#include "core/step_recorder.h"
#include "cuda/gemm/fallbacks.h"
#include "cuda/runtime/clear_error.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda::lt {
namespace {

std::string name_of(cublasStatus_t status) {
    return std::string(functions().status_name(status)) + " (" + std::to_string(int(status)) + ")";
}

// Status of a call in which the library may allocate memory of its own, past the caching allocator. If it
// gets none, the allocator releases its free memory, and the call is tried once more. Throws Error(memory) if
// that fails, too. `suspect`: another status that may, but need not, mean a lack of memory.
template <class Call> cublasStatus_t with_memory(const char* name, const Call& call,
                                                 cublasStatus_t suspect = CUBLAS_STATUS_ALLOC_FAILED) {
    cublasStatus_t status = call();
    if (status == CUBLAS_STATUS_SUCCESS) return status;
    clear_error();  // what a failed call of the library left behind is no error of the next launch
    if (status != CUBLAS_STATUS_ALLOC_FAILED && status != suspect) return status;
    const Device device(DeviceType::cuda, current_device());
    const bool capturing = stream_is_capturing();
    if (!capturing) {  // a captured step keeps what it has
        allocator(device).empty_cache();
        status = call();
    }
    if (status == CUBLAS_STATUS_SUCCESS) return status;
    clear_error();
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        fail(ErrorKind::memory, "gemm: ", name, " is out of memory on ", device, ": ", name_of(status),
             capturing ? " in a captured step" : ", after the cache was given back",
             "; free tensors, or leave the library memory by set_memory_limit()");
    return status;
}

struct DataType {
    Dtype dtype;
    cudaDataType_t type;
};
constexpr DataType data_types[] = {{float16, CUDA_R_16F},           {bfloat16, CUDA_R_16BF},
                                   {float32, CUDA_R_32F},           {float64, CUDA_R_64F},
                                   {float8_e4m3fn, CUDA_R_8F_E4M3}, {float8_e5m2, CUDA_R_8F_E5M2}};

std::uint32_t epilogue_of(Epilogue epilogue) {
    switch (epilogue) {
        case Epilogue::none:
            return CUBLASLT_EPILOGUE_DEFAULT;
        case Epilogue::bias:
            return CUBLASLT_EPILOGUE_BIAS;
        case Epilogue::relu:
            return CUBLASLT_EPILOGUE_RELU;
        case Epilogue::relu_bias:
            return CUBLASLT_EPILOGUE_RELU_BIAS;
        case Epilogue::gelu_tanh:
            return CUBLASLT_EPILOGUE_GELU;
        case Epilogue::gelu_tanh_bias:
            return CUBLASLT_EPILOGUE_GELU_BIAS;
        case Epilogue::gelu_tanh_aux:
            return CUBLASLT_EPILOGUE_GELU_AUX;
        case Epilogue::gelu_tanh_aux_bias:
            return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
        case Epilogue::relu_aux:
            return CUBLASLT_EPILOGUE_RELU_AUX;
        case Epilogue::relu_aux_bias:
            return CUBLASLT_EPILOGUE_RELU_AUX_BIAS;
        case Epilogue::drelu:
            return CUBLASLT_EPILOGUE_DRELU;
        case Epilogue::drelu_bgrad:
            return CUBLASLT_EPILOGUE_DRELU_BGRAD;
        case Epilogue::dgelu_tanh:
            return CUBLASLT_EPILOGUE_DGELU;
        case Epilogue::dgelu_tanh_bgrad:
            return CUBLASLT_EPILOGUE_DGELU_BGRAD;
        case Epilogue::bgrad_b:
            return CUBLASLT_EPILOGUE_BGRADB;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class T> void set(Plan& plan, cublasLtMatmulDescAttributes_t attribute, T value) {
    ok(functions().set_operation(&plan.operation, attribute, &value, sizeof value),
       "cublasLtMatmulDescSetAttribute");
}

template <class T> void set(cublasLtMatmulPreferenceOpaque_t& preference,
                            cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    ok(functions().set_preference(&preference, attribute, &value, sizeof value),
       "cublasLtMatmulPreferenceSetAttribute");
}

void make_layout(cublasLtMatrixLayoutOpaque_t& layout, Dtype dtype, std::int64_t rows, std::int64_t columns,
                 std::int64_t ld, const Problem& p, std::int64_t stride) {
    ok(functions().init_layout(&layout, sizeof layout, data_type(dtype), std::uint64_t(rows),
                               std::uint64_t(columns), ld),
       "cublasLtMatrixLayoutInit");
    if (p.batch == 1) return;
    const auto batch = static_cast<std::int32_t>(p.batch);
    ok(functions().set_layout(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
       "cublasLtMatrixLayoutSetAttribute");
    ok(functions().set_layout(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
       "cublasLtMatrixLayoutSetAttribute");
}

void set_vectors(Plan& plan, const Operands& o) {
    if (has_bias(plan.problem.epilogue)) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
    if (has_bias_grad(plan.problem.epilogue)) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias_grad);
    if (has_aux(plan.problem.epilogue)) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o.aux);
    if (!is_float8(plan.problem.a_type)) return;
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o.a_scale);
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o.b_scale);
}

// Sets the layout of aux, which an epilogue reads or writes in addition to D. The types stay unset, which
// means D's for a bias, its gradient and a matrix: others are for 8-bit types only.
void set_aux_layout(Plan& plan) {
    const Problem& p = plan.problem;
    if (!has_aux(p.epilogue)) return;
    if (has_mask(p.epilogue))
        return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, relu_mask_ld(p.m));  // in bits
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldd);
    if (p.batch > 1) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p.stride_d);
}

// Sets scales of rows of op(A) and columns of op(B), or of their blocks. The headers of CUDA 12.0 lack the
// names; outside_library() keeps earlier versions than 12.9 from the modes.
void set_scale_mode(Plan& plan) {
    if (plan.problem.scales == Granularity::tensor) return;
    constexpr std::int32_t blocks = 2;        // CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
    constexpr std::int32_t outer_vector = 3;  // CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
    const std::int32_t mode = plan.problem.scales == Granularity::row ? outer_vector : blocks;
    set(plan, cublasLtMatmulDescAttributes_t(31), mode);  // CUBLASLT_MATMUL_DESC_A_SCALE_MODE
    set(plan, cublasLtMatmulDescAttributes_t(32), mode);  // CUBLASLT_MATMUL_DESC_B_SCALE_MODE
}

// Records that the library returned nothing for the plan.
void refused(Plan& plan, const char* call, cublasStatus_t status) {
    plan.refusing_call = call;
    plan.status = status;
    if (status == CUBLAS_STATUS_INVALID_VALUE) count_invalid_problem(plan.problem, refusal(plan));
}

}  // namespace

void ok(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(ErrorKind::backend, "cuda: ", call, " failed with ", name_of(status));
}

// One handle per device, never destroyed: the driver may be gone when destructors of statics run.
cublasLtHandle_t handle() {
    static std::mutex mutex;
    static auto* const handles = new std::array<cublasLtHandle_t, 64>{};
    const auto device = static_cast<std::size_t>(current_device());
    const std::lock_guard lock(mutex);
    cublasLtHandle_t& h = handles->at(device);
    constexpr const char* call = "cublasLtCreate";
    if (h == nullptr)
        ok(with_memory(
               call, [&] { return functions().create(&h); }, CUBLAS_STATUS_NOT_INITIALIZED),
           call);
    return h;
}

cudaDataType_t data_type(Dtype dtype) {
    for (const DataType& known : data_types)
        if (known.dtype == dtype) return known.type;
    fail(ErrorKind::dtype, "gemm: no matrix products of ", dtype);
}

cublasComputeType_t compute_type(const Problem& p) {
    if (p.d_type == float64) return CUBLAS_COMPUTE_64F;
    return p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}
cudaDataType_t scale_type(const Problem& p) { return p.d_type == float64 ? CUDA_R_64F : CUDA_R_32F; }

cublasLtMatmulAlgo_t native(const Algo& algo) {
    cublasLtMatmulAlgo_t result{};
    static_assert(sizeof algo.data == sizeof result.data);
    for (int word = 0; word < 8; ++word) result.data[word] = algo.data[word];
    return result;
}

void store(const cublasLtMatmulAlgo_t& from, Algo& algo) {
    for (int word = 0; word < 8; ++word) algo.data[word] = from.data[word];
}

std::shared_ptr<Plan> make_plan(const Problem& p) {
    auto plan = std::make_shared<Plan>();
    plan->problem = p;
    ok(functions().init_operation(&plan->operation, sizeof plan->operation, compute_type(p), scale_type(p)),
       "cublasLtMatmulDescInit");
    set(*plan, CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t(p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(*plan, CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t(p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(*plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.epilogue));
    set_aux_layout(*plan);
    set_scale_mode(*plan);
    make_layout(plan->a, p.a_type, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda, p, p.stride_a);
    make_layout(plan->b, p.b_type, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb, p, p.stride_b);
    make_layout(plan->d, p.d_type, p.m, p.n, p.ldd, p, p.stride_d);
    return plan;
}

std::vector<Algo> heuristics(Plan& plan, const Operands& operands, std::size_t max_workspace, int max_count) {
    const Problem& p = plan.problem;
    set_vectors(plan, operands);  // the library infers alignments from these pointers
    cublasLtMatmulPreferenceOpaque_t preference{};
    ok(functions().init_preference(&preference, sizeof preference), "cublasLtMatmulPreferenceInit");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(max_workspace));
    // Partial sums of split-K in the compute type: in float16 they could overflow under a loss scale.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t(p.align_a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t(p.align_b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t(p.align_d));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t(p.align_d));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(max_count));
    int found = 0;
    constexpr const char* call = "cublasLtMatmulAlgoGetHeuristic";
    const cublasStatus_t status = with_memory(call, [&] {
        return functions().heuristic(handle(), &plan.operation, &plan.a, &plan.b, &plan.d, &plan.d,
                                     &preference, max_count, results.data(), &found);
    });
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
        refused(plan, call, status);
        return {};
    }
    ok(status, call);
    std::vector<Algo> algos;
    for (int i = 0; i < found; ++i) {
        const cublasLtMatmulHeuristicResult_t& r = results[static_cast<std::size_t>(i)];
        if (r.state != CUBLAS_STATUS_SUCCESS) {
            refused(plan, call, r.state);
            continue;
        }
        Algo algo;
        store(r.algo, algo);
        algo.workspace = r.workspaceSize;
        algos.push_back(algo);
    }
    if (found == 0) refused(plan, call, status);
    return algos;
}

bool accepts(Plan& plan, Algo& algo) {
    const cublasLtMatmulAlgo_t stored = native(algo);
    cublasLtMatmulHeuristicResult_t result{};
    if (functions().check_algo(handle(), &plan.operation, &plan.a, &plan.b, &plan.d, &plan.d, &stored,
                               &result) != CUBLAS_STATUS_SUCCESS)
        return false;
    std::uint32_t reduction = 0;
    std::size_t written = 0;
    ok(functions().get_algo(&stored, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction,
                            &written),
       "cublasLtMatmulAlgoConfigGetAttribute");
    algo.workspace = result.workspaceSize;
    return reduction == CUBLASLT_REDUCTION_SCHEME_NONE || reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

bool run(Plan& plan, const Algo& algo, const Operands& o) {
    set_vectors(plan, o);
    const cublasLtMatmulAlgo_t chosen = native(algo);
    const float alpha = static_cast<float>(o.alpha), beta = static_cast<float>(o.beta);
    const bool is_double = plan.problem.d_type == float64;
    count_launch();
    constexpr const char* call = "cublasLtMatmul";
    const cublasStatus_t status = with_memory(call, [&] {
        return functions().matmul(
            handle(), &plan.operation, is_double ? static_cast<const void*>(&o.alpha) : &alpha, o.a, &plan.a,
            o.b, &plan.b, is_double ? static_cast<const void*>(&o.beta) : &beta, o.d, &plan.d, o.d, &plan.d,
            &chosen, o.workspace, o.workspace_bytes, static_cast<cudaStream_t>(current_stream()));
    });
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    refused(plan, call, status);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
        status == CUBLAS_STATUS_ARCH_MISMATCH || status == CUBLAS_STATUS_EXECUTION_FAILED)
        return false;
    ok(status, call);
    return false;
}

std::string refusal(const Plan& plan) {
    if (plan.refusing_call == nullptr) return "";
    const bool nothing = plan.status == CUBLAS_STATUS_SUCCESS;
    return plan.refusing_call + (nothing ? " gave no algorithm" : ": " + name_of(plan.status));
}

}  // namespace mezzo::cuda::lt
