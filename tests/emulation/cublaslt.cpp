// Stand-in for cuBLASLt: the functions that cuda/gemm/cublaslt.cpp calls. It takes what NVIDIA documents
// ("Datatypes Supported" of cublasLtMatmul, the attributes of descriptors) and answers the rest with the
// status that is documented for it. A call that would be a fault on a GPU is reported by lt_device::misuse().
// mezzo-tests-emulated compiles it against tests/emulation/cublaslt/cublasLt.h, the shared object of
// mezzo-tests-ptx against NVIDIA's header.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "cuda/gemm/cublaslt.h"
#include "tests/emulation/fake_lt.h"
#include "tests/emulation/lt_device.h"

namespace {

using namespace mezzo;
using namespace mezzo::cuda::lt;
using emulation::fake_lt;
using emulation::lt_device::has_memory;
using emulation::lt_device::misuse;

constexpr std::uint64_t unset = std::uint32_t(-1);
constexpr std::size_t max_workspace = std::size_t(32) << 20;
// Words of an operation descriptor that no attribute has. They hold the
// alignments that algorithms were requested for: on a GPU they are a property of the algorithm.
constexpr std::size_t asked_alignments = 27;

// Copies a value of exactly the size that the library expects.
cublasStatus_t take(std::uint64_t& to, std::size_t expected, const void* value, std::size_t size) {
    if (value == nullptr || size != expected) return CUBLAS_STATUS_INVALID_VALUE;
    to = 0;
    std::memcpy(&to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

std::int64_t rows_of(cublasLtMatrixLayout_t x) { return std::int64_t(x->data[2]); }
std::int64_t columns_of(cublasLtMatrixLayout_t x) { return std::int64_t(x->data[3]); }
std::int64_t ld_of(cublasLtMatrixLayout_t x) { return std::int64_t(x->data[4]); }
std::int64_t batch_of(cublasLtMatrixLayout_t x) { return std::int32_t(std::uint32_t(x->data[5])); }
std::int64_t stride_of(cublasLtMatrixLayout_t x) { return std::int64_t(x->data[6]); }
void* pointer_of(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute) {
    return reinterpret_cast<void*>(op->data[attribute]);
}

constexpr std::pair<cudaDataType_t, Dtype> dtypes[] = {
    {CUDA_R_16F, float16}, {CUDA_R_16BF, bfloat16},         {CUDA_R_32F, float32},
    {CUDA_R_64F, float64}, {CUDA_R_8F_E4M3, float8_e4m3fn}, {CUDA_R_8F_E5M2, float8_e5m2}};
constexpr std::pair<cublasLtEpilogue_t, Epilogue> epilogues[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, Epilogue::none},
    {CUBLASLT_EPILOGUE_BIAS, Epilogue::bias},
    {CUBLASLT_EPILOGUE_RELU, Epilogue::relu},
    {CUBLASLT_EPILOGUE_RELU_BIAS, Epilogue::relu_bias},
    {CUBLASLT_EPILOGUE_RELU_AUX, Epilogue::relu_aux},
    {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, Epilogue::relu_aux_bias},
    {CUBLASLT_EPILOGUE_DRELU, Epilogue::drelu},
    {CUBLASLT_EPILOGUE_DRELU_BGRAD, Epilogue::drelu_bgrad},
    {CUBLASLT_EPILOGUE_GELU, Epilogue::gelu_tanh},
    {CUBLASLT_EPILOGUE_GELU_BIAS, Epilogue::gelu_tanh_bias},
    {CUBLASLT_EPILOGUE_GELU_AUX, Epilogue::gelu_tanh_aux},
    {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, Epilogue::gelu_tanh_aux_bias},
    {CUBLASLT_EPILOGUE_DGELU, Epilogue::dgelu_tanh},
    {CUBLASLT_EPILOGUE_DGELU_BGRAD, Epilogue::dgelu_tanh_bgrad},
    {CUBLASLT_EPILOGUE_BGRADB, Epilogue::bgrad_b},
};
static_assert(std::size(epilogues) == epilogue_count);

// Sets `to` to the table's value for a number of the library. Returns false if the table has none.
template <class Table, class T> bool find(const Table& table, std::uint64_t number, T& to) {
    for (const auto& [library, value] : table)
        if (std::uint64_t(library) == number) return to = value, true;
    return false;
}

// Compute type, scale type, types of A and B, type of C and D. A bias and its gradient have the type of D,
// but bfloat16 for a float32 result of float8 operands.
struct Types {
    cublasComputeType_t compute;
    cudaDataType_t scale, a, b, cd;
};
constexpr Types supported[] = {
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_64F, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_32F},
};

// Attributes of cuBLAS 12.9, which older headers lack, and their values for a factor per block of 32, and per
// row or column.
constexpr auto a_scale_mode = cublasLtMatmulDescAttributes_t(31),
               b_scale_mode = cublasLtMatmulDescAttributes_t(32);
constexpr std::size_t a_mode_word = 31, b_mode_word = 30;  // of an operation descriptor
constexpr std::uint64_t block_vectors = 2, outer_vector = 3;
constexpr std::uint64_t first_scale_mode = 120900;  // version

// Requirements of factors of blocks. They have no default, unlike those of matrices.
cublasStatus_t check_blocks(cublasLtMatmulDesc_t op, const Problem& p, int capability) {
    if (capability < 100) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const auto attribute :
         {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER}) {
        const void* const factors = pointer_of(op, attribute);
        if (factors == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
        if (reinterpret_cast<std::uintptr_t>(factors) % 16 != 0)
            misuse("factors of blocks are not 16-byte aligned");
    }
    return p.k % 32 == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// Requirements of float8 operands; none of them may have a scale or its mode without being float8.
cublasStatus_t check_float8(cublasLtMatmulDesc_t op, const Problem& p) {
    const std::uint64_t modes[] = {op->data[a_mode_word], op->data[b_mode_word]};
    if (!is_float8(p.a_type)) {
        const bool scaled = pointer_of(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) != nullptr ||
                            pointer_of(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) != nullptr ||
                            modes[0] != 0 || modes[1] != 0;
        return scaled ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
    }
    const int capability = emulation::lt_device::capability();
    if (capability < 89) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool all_layouts = capability / 10 == 10;
    if (!all_layouts && (!p.trans_a || p.trans_b)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (modes[0] != modes[1] || (modes[0] != 0 && modes[0] != outer_vector && modes[0] != block_vectors))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (modes[0] == outer_vector && capability != 90) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (modes[0] == block_vectors)
        if (const cublasStatus_t status = check_blocks(op, p, capability); status != CUBLAS_STATUS_SUCCESS)
            return status;
    if (p.batch > 1 || has_aux(p.epilogue) || has_bias_grad(p.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const std::int64_t size : {p.m, p.n, p.k, p.lda, p.ldb, p.ldd})
        if (size % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_types(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                           cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const Problem& p) {
    bool found = false;
    for (const Types& t : supported)
        found |= op->data[0] == std::uint64_t(t.compute) && op->data[1] == std::uint64_t(t.scale) &&
                 a->data[0] == std::uint64_t(t.a) && b->data[0] == std::uint64_t(t.b) &&
                 c->data[0] == std::uint64_t(t.cd) && d->data[0] == std::uint64_t(t.cd);
    if (!found) return CUBLAS_STATUS_NOT_SUPPORTED;
    const std::uint64_t vector = op->data[CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE];
    if ((has_bias(p.epilogue) || has_bias_grad(p.epilogue)) && vector != unset && vector != d->data[0])
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (is_float8(p.a_type) && has_bias(p.epilogue) && p.d_type == float32)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    // "should be left unset" but for 8-bit results
    if (op->data[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE] != unset) return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_vectors(cublasLtMatmulDesc_t op, const Problem& p) {
    const void* const vector = pointer_of(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    if ((has_bias(p.epilogue) || has_bias_grad(p.epilogue)) && vector == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.epilogue == Epilogue::bgrad_b && p.batch > 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!has_aux(p.epilogue)) return CUBLAS_STATUS_SUCCESS;
    if (pointer_of(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    const std::int64_t multiple = has_mask(p.epilogue) ? 128 : 8;
    const auto ld = std::int64_t(op->data[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD]),
               stride = std::int64_t(op->data[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE]);
    if (ld < p.m || ld % multiple != 0 || stride % multiple != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (ld != (has_mask(p.epilogue) ? relu_mask_ld(p.m) : p.ldd) || (p.batch > 1 && stride != p.stride_d))
        misuse("aux is not laid out as D");
    return has_mask(p.epilogue) && p.batch > 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_layout(cublasLtMatrixLayout_t x, std::int64_t rows, std::int64_t columns) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (rows_of(x) != rows || columns_of(x) != columns || rows < 1 || columns < 1 || ld_of(x) < rows ||
        batch_of(x) < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    return rows > most || columns > most ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

// The problem that the descriptors describe.
cublasStatus_t understand(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, Problem& p) {
    if (!find(dtypes, a->data[0], p.a_type) || !find(dtypes, b->data[0], p.b_type) ||
        !find(dtypes, d->data[0], p.d_type) ||
        !find(epilogues, op->data[CUBLASLT_MATMUL_DESC_EPILOGUE], p.epilogue))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    p.trans_a = op->data[CUBLASLT_MATMUL_DESC_TRANSA] == CUBLAS_OP_T;
    p.trans_b = op->data[CUBLASLT_MATMUL_DESC_TRANSB] == CUBLAS_OP_T;
    p.m = rows_of(d), p.n = columns_of(d), p.k = p.trans_a ? rows_of(a) : columns_of(a);
    p.lda = ld_of(a), p.ldb = ld_of(b), p.ldd = ld_of(d);
    p.batch = batch_of(d);
    p.stride_a = stride_of(a), p.stride_b = stride_of(b), p.stride_d = stride_of(d);
    p.tf32 = op->data[0] == CUBLAS_COMPUTE_32F_FAST_TF32;
    p.scales = op->data[a_mode_word] == outer_vector    ? Granularity::row
               : op->data[a_mode_word] == block_vectors ? Granularity::block32
                                                        : Granularity::tensor;
    if (batch_of(a) != p.batch || batch_of(b) != p.batch || batch_of(c) != p.batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (const cublasStatus_t status :
         {check_layout(a, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k),
          check_layout(b, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n), check_layout(c, p.m, p.n),
          check_layout(d, p.m, p.n), check_types(op, a, b, c, d, p), check_vectors(op, p),
          check_float8(op, p)})
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    return CUBLAS_STATUS_SUCCESS;
}

std::uint16_t alignment_of(const void* p) {
    const auto address = reinterpret_cast<std::uintptr_t>(p) | 256;
    return static_cast<std::uint16_t>(address & (~address + 1));
}

// A bias that is less aligned has made kernels fault.
void require_aligned_vectors(cublasLtMatmulDesc_t op, Problem& p) {
    p.align_bias = alignment_of(pointer_of(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
    p.align_aux = alignment_of(pointer_of(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER));
    if (p.align_bias < 16 && (has_bias(p.epilogue) || has_bias_grad(p.epilogue)))
        misuse("a bias or its gradient is not 16-byte aligned");
    if (p.align_aux < 16 && has_aux(p.epilogue)) misuse("aux is not 16-byte aligned");
}

bool whole_vectors(const Problem& p) {
    const auto fits = [](std::uint16_t alignment, std::int64_t ld, Dtype dtype) {
        return alignment >= 16 && ld * std::int64_t(size_of(dtype)) % 16 == 0;
    };
    return fits(p.align_a, p.lda, p.a_type) && fits(p.align_b, p.ldb, p.b_type) &&
           fits(p.align_d, p.ldd, p.d_type);
}

bool takes(Epilogue epilogue) {
    return !(fake_lt.no_fused && epilogue != Epilogue::none) && !fake_lt.refused.contains(epilogue);
}

// Workspace that the library's algorithms ask for. Unless the test sets it: room for the sums of split-K,
// where k is long enough to be split.
std::size_t workspace_of(const Problem& p) {
    if (fake_lt.workspace) return *fake_lt.workspace;
    const std::size_t sums = std::size_t(p.batch * p.m * p.n) * sizeof(double);
    return p.k < 64 ? 0 : sums <= max_workspace ? sums : 4096;
}

double number(const void* value, std::uint64_t scale) {
    return scale == CUDA_R_64F ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

// Whether algorithms were asked for with less alignment than the pointers have.
void require_alignments(cublasLtMatmulDesc_t op, const void* a, const void* b, const void* d) {
    const std::array<const void*, 3> pointers{a, b, d};
    for (std::size_t i = 0; i < pointers.size(); ++i)
        if (pointers[i] == nullptr || alignment_of(pointers[i]) < op->data[asked_alignments + i])
            misuse("an operand is less aligned than its algorithm was asked for");
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    static char context;
    if (fake_lt.create_status != 0) return cublasStatus_t(fake_lt.create_status);
    if (!has_memory(fake_lt.handle_bytes)) return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = reinterpret_cast<cublasLtHandle_t>(&context);
    return CUBLAS_STATUS_SUCCESS;
}

std::size_t cublasLtGetVersion() { return fake_lt.version; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
    static constexpr std::pair<cublasStatus_t, const char*> names[] = {
        {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS"},
        {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED"},
        {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED"},
        {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE"},
        {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH"},
        {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED"},
        {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR"},
        {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"}};
    const char* name = "unknown";
    find(names, std::uint64_t(status), name);
    return name;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t op, std::size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    if (size < sizeof *op) return CUBLAS_STATUS_ALLOC_FAILED;
    ++fake_lt.plans;
    *op = {};
    op->data[0] = std::uint64_t(compute);
    op->data[1] = std::uint64_t(scale);
    op->data[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
    op->data[CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE] = unset;
    op->data[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE] = unset;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t size) {
    const bool is_mode = attribute == a_scale_mode || attribute == b_scale_mode;
    if (is_mode && fake_lt.version < first_scale_mode) return CUBLAS_STATUS_INVALID_VALUE;
    if (is_mode) return take(op->data[attribute == a_scale_mode ? a_mode_word : b_mode_word], 4, value, size);
    const bool wide = attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ||
                      attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER ||
                      attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER ||
                      attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ||
                      attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD ||
                      attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE;
    if (std::size_t(attribute) >= std::size(op->data)) return CUBLAS_STATUS_INVALID_VALUE;
    return take(op->data[attribute], wide ? 8 : 4, value, size);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t size,
                                                 cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                                                 std::int64_t ld) {
    if (size < sizeof *layout) return CUBLAS_STATUS_ALLOC_FAILED;
    *layout = {{std::uint64_t(type), 0, rows, columns, std::uint64_t(ld), 1, 0, 0}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t size) {
    return take(layout->data[attribute], attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? 4 : 8, value,
                size);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     std::size_t size) {
    if (size < sizeof *preference) return CUBLAS_STATUS_ALLOC_FAILED;
    *preference = {{256, 0, 0, 7, 0, 256, 256, 256}};  // attribute 8 comes first
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
    return take(preference->data[attribute % 8],
                attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
    *found = 0;
    if (!has_memory(fake_lt.heuristic_bytes)) return CUBLAS_STATUS_ALLOC_FAILED;
    ++fake_lt.heuristics;
    if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
    Problem p;
    const cublasStatus_t status = understand(op, a, b, c, d, p);
    p.align_a = std::uint16_t(preference->data[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]);
    p.align_b = std::uint16_t(preference->data[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES]);
    p.align_d = std::uint16_t(preference->data[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES % 8]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (is_float8(p.a_type) && !whole_vectors(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    require_aligned_vectors(op, p);
    fake_lt.problems.push_back(p);
    const std::size_t workspace = workspace_of(p);
    if (fake_lt.no_algorithm || !takes(p.epilogue) ||
        workspace > preference->data[CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES])
        return cublasStatus_t(fake_lt.status_of_none);
    const std::array<std::uint64_t, 3> alignments{p.align_a, p.align_b, p.align_d};
    std::copy(alignments.begin(), alignments.end(), op->data + asked_alignments);
    const int count = std::min(requested, emulation::candidate_count);
    const bool last_first =
        fake_lt.vector_algorithm && whole_vectors(p) && count == emulation::candidate_count;
    for (int i = 0; i < count; ++i)
        results[i] = {.algo = {{std::uint64_t(last_first ? (i + count - 1) % count : i)}},
                      .workspaceSize = workspace,
                      .state = CUBLAS_STATUS_SUCCESS,
                      .wavesCount = 1,
                      .reserved = {}};
    *found = count;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
    Problem p;
    const cublasStatus_t status = understand(op, a, b, c, d, p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (!emulation::exists(algo->data[0])) return CUBLAS_STATUS_INVALID_VALUE;
    if (!takes(p.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    *result = {.algo = {},
               .workspaceSize = workspace_of(p),
               .state = CUBLAS_STATUS_SUCCESS,
               .wavesCount = 1,
               .reserved = {}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t size, std::size_t* written) {
    if (attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || size != 4) return CUBLAS_STATUS_INVALID_VALUE;
    const std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    std::memcpy(value, &scheme, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_size, cudaStream_t stream) {
    if (!has_memory(fake_lt.matmul_bytes)) return CUBLAS_STATUS_ALLOC_FAILED;
    Problem p;
    ++fake_lt.runs;
    const cublasStatus_t status = understand(op, a_layout, b_layout, c_layout, d_layout, p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    p.align_a = std::uint16_t(op->data[asked_alignments]);
    p.align_b = std::uint16_t(op->data[asked_alignments + 1]);
    p.align_d = std::uint16_t(op->data[asked_alignments + 2]);
    Operands o{.a = a,
               .b = b,
               .bias = nullptr,
               .d = d,
               .aux = nullptr,
               .bias_grad = nullptr,
               .alpha = number(alpha, op->data[1]),
               .beta = number(beta, op->data[1]),
               .workspace = workspace,
               .workspace_bytes = workspace_size};
    Algo chosen;
    chosen.data[0] = algo->data[0];
    chosen.workspace = workspace_of(p);
    emulation::lt_device::pass_time(p, int(chosen.data[0]));
    if (int(chosen.data[0]) < fake_lt.failing || (fake_lt.executes && !fake_lt.executes(p))) {
        ++fake_lt.failed_runs;
        return static_cast<cublasStatus_t>(fake_lt.status_of_failing);
    }
    if (workspace_size < chosen.workspace || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (c != d) misuse("C is not D");
    require_aligned_vectors(op, p);
    require_alignments(op, a, b, d);
    if (has_bias(p.epilogue)) o.bias = pointer_of(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    if (has_bias_grad(p.epilogue)) o.bias_grad = pointer_of(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    if (has_aux(p.epilogue)) o.aux = pointer_of(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    o.a_scale = pointer_of(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
    o.b_scale = pointer_of(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
    emulation::multiply(p, o, chosen, stream);
    fake_lt.last_algorithm = int(chosen.data[0]);
    fake_lt.last_problem = p;
    fake_lt.last_workspace = workspace;
    fake_lt.last_operands = o;
    if (fake_lt.on_run) fake_lt.on_run(o);
    return CUBLAS_STATUS_SUCCESS;
}
