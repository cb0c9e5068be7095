// lt.h by cuBLASLt. The library is opened when the first plan is made, not linked: a program starts without
// it, and without the 200 MB that loading it costs.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <string>

#include "cuda/gemm/lt.h"
#include "cuda/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda::lt {

struct Plan {
    Problem problem;
    cublasLtMatmulDescOpaque_t operation{};
    cublasLtMatrixLayoutOpaque_t a{}, b{}, d{};
};

namespace {

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

void ok(cublasStatus_t status, const char* call) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fail(ErrorKind::backend, "cuda: ", call, " failed with ", functions().status_name(status), " (",
         int(status), ")");
}

// One handle per device, never destroyed: the driver may be gone when destructors of statics run.
cublasLtHandle_t handle() {
    static std::mutex mutex;
    static auto* const handles = new std::array<cublasLtHandle_t, 64>{};
    const auto device = static_cast<std::size_t>(current_device());
    const std::lock_guard lock(mutex);
    cublasLtHandle_t& h = handles->at(device);
    if (h == nullptr) ok(functions().create(&h), "cublasLtCreate");
    return h;
}

struct DataType {
    Dtype dtype;
    cudaDataType_t type;
};
constexpr DataType data_types[] = {
    {float16, CUDA_R_16F}, {bfloat16, CUDA_R_16BF}, {float32, CUDA_R_32F}, {float64, CUDA_R_64F}};

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
}

// The types and layout of what an epilogue reads or writes beside D.
void set_vector_types(Plan& plan) {
    const Problem& p = plan.problem;
    const auto bias_type = [&](Dtype dtype) {
        set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t(data_type(dtype)));
    };
    if (has_bias(p.epilogue)) bias_type(p.d_type);
    // cublasLt.h documents no such type for 16-bit D; where the library does not support it, heuristics()
    // finds no algorithm.
    if (has_bias_grad(p.epilogue)) bias_type(bias_grad_type(p.d_type));
    if (!has_aux(p.epilogue)) return;
    if (has_mask(p.epilogue))
        return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, relu_mask_ld(p.m));  // in bits
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, std::int32_t(data_type(p.d_type)));
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldd);
    if (p.batch > 1) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p.stride_d);
}

cublasLtMatmulAlgo_t native(const Algo& algo) {
    cublasLtMatmulAlgo_t result{};
    static_assert(sizeof algo.data == sizeof result.data);
    for (int word = 0; word < 8; ++word) result.data[word] = algo.data[word];
    return result;
}

void store(const cublasLtMatmulAlgo_t& from, Algo& algo) {
    for (int word = 0; word < 8; ++word) algo.data[word] = from.data[word];
}

// The settings of AlgoFamily::values in its order, with the size in bytes that the library expects of each.
// The inner shape stays as the library sets it.
struct Setting {
    cublasLtMatmulAlgoConfigAttributes_t attribute;
    std::size_t bytes;
    const char* name;
};
constexpr std::array<Setting, 6> settings{
    Setting{CUBLASLT_ALGO_CONFIG_TILE_ID, 4, "tile"},
    Setting{CUBLASLT_ALGO_CONFIG_STAGES_ID, 4, "stages"},
    Setting{CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4, "option"},
    Setting{CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4, "split"},
    Setting{CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4, "swizzle"},
    Setting{CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2, "cluster"},
};
constexpr std::int32_t max_option = 1023;
constexpr Setting split_setting = settings[3];
constexpr Setting family_id{CUBLASLT_ALGO_CONFIG_ID, 4, "family"};
constexpr Setting reduction_setting{CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4, "reduction"};

// A capability that is one number; `otherwise` where the library does not know it.
template <class T>
T capability(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoCapAttributes_t name, T otherwise) {
    T value = otherwise;
    std::size_t written = 0;
    const cublasStatus_t status = functions().capability(&algo, name, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS ? value : otherwise;
}

// A capability that lists ids; 0 (undefined) alone where it lists none.
std::vector<std::uint32_t> ids(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoCapAttributes_t name) {
    std::size_t bytes = 0;
    if (functions().capability(&algo, name, nullptr, 0, &bytes) != CUBLAS_STATUS_SUCCESS || bytes == 0)
        return {0};
    std::vector<std::uint32_t> result(bytes / sizeof(std::uint32_t));
    ok(functions().capability(&algo, name, result.data(), bytes, &bytes),
       "cublasLtMatmulAlgoCapGetAttribute");
    return result;
}

std::vector<std::uint32_t> numbers_to(std::uint32_t last) {
    std::vector<std::uint32_t> result;
    for (std::uint32_t i = 0; i <= last; ++i) result.push_back(i);
    return result;
}

std::vector<std::vector<std::uint32_t>> values_of(const cublasLtMatmulAlgo_t& algo, int device) {
    const bool splits = capability(algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT, std::int32_t(0)) != 0 &&
                        (capability(algo, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK, std::uint32_t(0)) &
                         CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
    std::vector<std::uint32_t> split{1}, cluster{CUBLASLT_CLUSTER_SHAPE_AUTO};
    if (splits) split = {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32};
    const bool clusters = device_info(device).major >= 9;
    for (std::uint32_t c = CUBLASLT_CLUSTER_SHAPE_1x1x1; clusters && c < CUBLASLT_CLUSTER_SHAPE_END; ++c)
        cluster.push_back(c);
    const auto options = capability(algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, std::int32_t(0));
    const auto swizzles = capability(algo, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT, std::uint32_t(0));
    return {ids(algo, CUBLASLT_ALGO_CAP_TILE_IDS),
            ids(algo, CUBLASLT_ALGO_CAP_STAGES_IDS),
            numbers_to(std::uint32_t(std::clamp(options, 0, max_option))),
            split,
            numbers_to(swizzles),
            cluster};
}

// A family's algorithm with no setting changed; false if the library has none for the problem's types.
bool init(const Problem& p, int id, cublasLtMatmulAlgo_t& algo) {
    const cudaDataType_t d = data_type(p.d_type);
    return functions().init_algo(handle(), compute_type(p), scale_type(p), data_type(p.a_type),
                                 data_type(p.b_type), d, d, id, &algo) == CUBLAS_STATUS_SUCCESS;
}

// None if this version of the library does not know the setting.
std::optional<std::uint32_t> get(const cublasLtMatmulAlgo_t& algo, const Setting& setting) {
    std::uint32_t value = 0;
    std::size_t written = 0;
    const cublasStatus_t status =
        functions().get_algo(&algo, setting.attribute, &value, setting.bytes, &written);
    return status == CUBLAS_STATUS_SUCCESS ? std::optional(value) : std::nullopt;
}

bool set(cublasLtMatmulAlgo_t& algo, const Setting& setting, std::uint32_t value) {
    if (get(algo, setting) == value) return true;  // a family may refuse settings that it does not have
    const auto narrow = static_cast<std::uint16_t>(value);
    const void* const from = setting.bytes == sizeof narrow ? static_cast<const void*>(&narrow) : &value;
    return functions().set_algo(&algo, setting.attribute, from, setting.bytes) == CUBLAS_STATUS_SUCCESS;
}

// The algorithm with the reduction scheme that its split-K setting needs; none if the library does not take
// it.
std::optional<Algo> complete(Plan& plan, cublasLtMatmulAlgo_t algo) {
    const bool splits = get(algo, split_setting).value_or(1) > 1;
    if (!set(algo, reduction_setting,
             splits ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE))
        return std::nullopt;
    Algo result;
    store(algo, result);
    return accepts(plan, result) ? std::optional(result) : std::nullopt;
}

}  // namespace

std::shared_ptr<Plan> make_plan(const Problem& p) {
    auto plan = std::make_shared<Plan>();
    plan->problem = p;
    ok(functions().init_operation(&plan->operation, sizeof plan->operation, compute_type(p), scale_type(p)),
       "cublasLtMatmulDescInit");
    set(*plan, CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t(p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(*plan, CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t(p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(*plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.epilogue));
    set_vector_types(*plan);
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
    const cublasStatus_t status =
        functions().heuristic(handle(), &plan.operation, &plan.a, &plan.b, &plan.d, &plan.d, &preference,
                              max_count, results.data(), &found);
    // "Nothing fits" is reported as one of these, depending on the shape.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
    ok(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<Algo> algos;
    for (int i = 0; i < found; ++i) {
        const cublasLtMatmulHeuristicResult_t& r = results[static_cast<std::size_t>(i)];
        if (r.state != CUBLAS_STATUS_SUCCESS) continue;
        Algo algo;
        store(r.algo, algo);
        algo.workspace = r.workspaceSize;
        algos.push_back(algo);
    }
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

std::vector<AlgoFamily> families(Plan& plan) {
    const Problem& p = plan.problem;
    const cudaDataType_t d = data_type(p.d_type);
    std::array<int, 256> found{};
    int count = 0;
    ok(functions().algo_ids(handle(), compute_type(p), scale_type(p), data_type(p.a_type),
                            data_type(p.b_type), d, d, int(found.size()), found.data(), &count),
       "cublasLtMatmulAlgoGetIds");
    const std::uint64_t narrow = CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F;
    std::vector<AlgoFamily> result;
    for (int i = 0; i < count; ++i) {
        cublasLtMatmulAlgo_t algo{};
        const int id = found[static_cast<std::size_t>(i)];
        if (!init(p, id, algo)) continue;
        if ((capability(algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, std::uint64_t(0)) & narrow) != 0)
            continue;
        result.push_back({id, values_of(algo, p.device)});
    }
    return result;
}

std::optional<Algo> configuration(Plan& plan, const AlgoFamily& family, std::uint64_t number) {
    cublasLtMatmulAlgo_t algo{};
    if (!init(plan.problem, family.id, algo)) return std::nullopt;
    for (std::size_t i = 0; i < settings.size(); ++i) {
        const auto& values = family.values.at(i);
        if (!set(algo, settings[i], values[number % values.size()])) return std::nullopt;
        number /= values.size();
    }
    return complete(plan, algo);
}

std::vector<Algo> neighbours(Plan& plan, const Algo& algo) {
    const cublasLtMatmulAlgo_t start = native(algo);
    const int id = int(get(start, family_id).value_or(0));
    cublasLtMatmulAlgo_t plain{};
    std::vector<Algo> result;
    if (!init(plan.problem, id, plain)) return result;
    const auto values = values_of(plain, plan.problem.device);
    for (std::size_t i = 0; i < settings.size(); ++i)
        for (const std::uint32_t value : values.at(i)) {
            cublasLtMatmulAlgo_t other = start;
            if (get(start, settings[i]) == value || !set(other, settings[i], value)) continue;
            if (const auto found = complete(plan, other)) result.push_back(*found);
        }
    return result;
}

std::string describe(const Algo& algo) {
    const cublasLtMatmulAlgo_t chosen = native(algo);
    std::string text = "family " + std::to_string(get(chosen, family_id).value_or(0));
    for (const Setting& setting : settings)
        if (const auto value = get(chosen, setting))
            text += std::string(", ") + setting.name + " " + std::to_string(*value);
    return text;
}

std::uint64_t version() { return functions().version(); }

bool run(Plan& plan, const Algo& algo, const Operands& o) {
    set_vectors(plan, o);
    const cublasLtMatmulAlgo_t chosen = native(algo);
    const float alpha = static_cast<float>(o.alpha), beta = static_cast<float>(o.beta);
    const bool is_double = plan.problem.d_type == float64;
    count_launch();
    const cublasStatus_t status = functions().matmul(
        handle(), &plan.operation, is_double ? static_cast<const void*>(&o.alpha) : &alpha, o.a, &plan.a, o.b,
        &plan.b, is_double ? static_cast<const void*>(&o.beta) : &beta, o.d, &plan.d, o.d, &plan.d, &chosen,
        o.workspace, o.workspace_bytes, static_cast<cudaStream_t>(current_stream()));
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
        status == CUBLAS_STATUS_ARCH_MISMATCH || status == CUBLAS_STATUS_EXECUTION_FAILED)
        return false;
    ok(status, "cublasLtMatmul");
    return false;
}

}  // namespace mezzo::cuda::lt
