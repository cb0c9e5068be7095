// Search of cuBLASLt's algorithms beyond those that it proposes.
#include <algorithm>
#include <array>
#include <string>

#include "cuda/gemm/cublaslt.h"
#include "cuda/runtime/runtime.h"

namespace mezzo::cuda::lt {
namespace {

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

// A capability that is one number; `otherwise` if the library does not have it.
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

// Value of a setting; none if this version of the library does not have the setting.
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

}  // namespace mezzo::cuda::lt
