// Reads and writes files of GEMM plans: save_gemm_plans() and load_gemm_plans() of mezzo/cuda.h.
// docs/internals/cuda.md describes the format.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>

#include "core/backend.h"
#include "io/crc.h"
#include "io/file.h"
#include "io/json.h"
#include "kernels/gemm_plan.h"
#include "mezzo/cuda.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

using gemm_plan::Problem;
using gemm_plan::TunedGemm;
using io::JsonKind;
using io::JsonValue;

constexpr const char* format_name = "mezzo GEMM plans 1";
constexpr std::uint64_t max_file_bytes = 64000000;
constexpr std::uint64_t max_size = std::uint64_t(1) << 48;

struct SizeField {
    const char* name;
    std::int64_t Problem::*value;
    std::uint64_t least;
};
constexpr SizeField sizes[] = {
    {"m", &Problem::m, 1},
    {"n", &Problem::n, 1},
    {"k", &Problem::k, 1},
    {"lda", &Problem::lda, 1},
    {"ldb", &Problem::ldb, 1},
    {"ldd", &Problem::ldd, 1},
    {"batch", &Problem::batch, 1},
    {"stride_a", &Problem::stride_a, 0},
    {"stride_b", &Problem::stride_b, 0},
    {"stride_d", &Problem::stride_d, 0},
};
struct AlignmentField {
    const char* name;
    std::uint16_t Problem::*value;
};
constexpr AlignmentField alignments[] = {
    {"align_a", &Problem::align_a},       {"align_b", &Problem::align_b},     {"align_d", &Problem::align_d},
    {"align_bias", &Problem::align_bias}, {"align_aux", &Problem::align_aux},
};
struct DtypeField {
    const char* name;
    Dtype Problem::*value;
};
constexpr DtypeField dtypes[] = {{"a", &Problem::a_type}, {"b", &Problem::b_type}, {"d", &Problem::d_type}};
struct FlagField {
    const char* name;
    bool Problem::*value;
};
constexpr FlagField flags[] = {{"trans_a", &Problem::trans_a},
                               {"trans_b", &Problem::trans_b},
                               {"tf32", &Problem::tf32},
                               {"beta_is_zero", &Problem::beta_is_zero}};

// Names in files, indexed by the enumerations' values.
constexpr std::array epilogue_names{"none",          "bias",
                                    "relu",          "relu_bias",
                                    "gelu_tanh",     "gelu_tanh_bias",
                                    "gelu_tanh_aux", "gelu_tanh_aux_bias",
                                    "relu_aux",      "relu_aux_bias",
                                    "drelu",         "drelu_bgrad",
                                    "dgelu_tanh",    "dgelu_tanh_bgrad",
                                    "bgrad_b"};
static_assert(epilogue_names.size() == gemm_plan::epilogue_count);
constexpr std::array activation_names{"none", "relu", "gelu", "gelu_tanh"};
// The dtypes of operands, and their names.
constexpr std::array factor_dtypes{float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2};
constexpr std::array dtype_names{name(float16), name(bfloat16),      name(float32),
                                 name(float64), name(float8_e4m3fn), name(float8_e5m2)};

// Plans for one kind of GPU and one version of the library.
struct Group {
    gemm_plan::Library library;
    std::vector<TunedGemm> plans;
};

std::string request_text(const gemm_plan::Request& r) {
    std::string text;
    for (const SizeField& f : sizes) text += fmt::format("\"{}\": {}, ", f.name, r.problem.*f.value);
    for (const AlignmentField& f : alignments)
        text += fmt::format("\"{}\": {}, ", f.name, r.problem.*f.value);
    for (const DtypeField& f : dtypes)
        text += fmt::format("\"{}\": \"{}\", ", f.name, name(r.problem.*f.value));
    for (const FlagField& f : flags) text += fmt::format("\"{}\": {}, ", f.name, r.problem.*f.value);
    // Older files have no such products, and stay readable.
    if (r.problem.scales == Granularity::row) text += "\"row_scales\": true, ";
    if (r.problem.scales == Granularity::block32) text += "\"block_scales\": true, ";
    return text + fmt::format(R"("most": "{}", "activation": "{}", "keeps_before": {})",
                              epilogue_names[std::size_t(r.problem.epilogue)],
                              activation_names[std::size_t(r.activation)], r.keeps_before);
}

std::string plan_text(const TunedGemm& plan) {
    std::string algorithm;
    for (const std::uint64_t word : plan.choice.algo.data) algorithm += fmt::format("{:016x}", word);
    return fmt::format(R"({{{}, "epilogue": "{}", "algorithm": "{}", "workspace": {}}})",
                       request_text(plan.request), epilogue_names[std::size_t(plan.choice.epilogue)],
                       algorithm, plan.choice.algo.workspace);
}

// Returns the text of the groups, which the checksum is computed of.
std::string groups_text(const std::vector<Group>& groups) {
    std::string text = "[";
    for (const Group& group : groups) {
        text += text.size() > 1 ? ",\n{\"device\": " : "\n{\"device\": ";
        io::append_quoted(text, group.library.device);
        text += fmt::format(", \"major\": {}, \"minor\": {}, \"cublaslt\": {}, \"plans\": [",
                            group.library.major, group.library.minor, group.library.version);
        for (const TunedGemm& plan : group.plans)
            text += (&plan == group.plans.data() ? "\n" : ",\n") + plan_text(plan);
        text += "]}";
    }
    return text + "]";
}

std::uint64_t checksum(std::string_view text) { return io::crc32(0, text.data(), text.size()); }

// A JSON object of a file. Error messages begin with `where`.
class Object {
public:
    Object(const JsonValue& value, std::string where) : value_(value), where_(std::move(where)) {
        check(value.kind == JsonKind::object, ErrorKind::value, where_, ": is ", io::name(value.kind),
              ", not an object");
    }
    const JsonValue& member(const char* key, JsonKind kind) const {
        const JsonValue* const found = value_.find(key);
        check(found != nullptr, ErrorKind::value, where_, ": has no ", key);
        check(found->kind == kind, ErrorKind::value, where_, ": ", key, " is ", io::name(found->kind), "; ",
              io::name(kind), " is expected");
        return *found;
    }
    std::uint64_t natural(const char* key, std::uint64_t least, std::uint64_t most) const {
        const std::uint64_t value = member(key, JsonKind::natural).natural;
        check(value >= least && value <= most, ErrorKind::value, where_, ": ", key, " is ", value, "; ",
              least, " to ", most, " is expected");
        return value;
    }
    bool flag(const char* key) const { return member(key, JsonKind::boolean).flag; }
    // The same for a flag that is written only if it is true.
    bool rare_flag(const char* key) const { return value_.find(key) != nullptr && flag(key); }
    template <std::size_t n>
    std::size_t one_of(const char* key, const std::array<const char*, n>& names) const {
        const std::string& text = member(key, JsonKind::string).text;
        const auto found = std::find(names.begin(), names.end(), text);
        check(found != names.end(), ErrorKind::value, where_, ": ", key, " is ", io::shown(text),
              ", which is not known");
        return std::size_t(found - names.begin());
    }
    const std::string& where() const { return where_; }

private:
    const JsonValue& value_;
    std::string where_;
};

std::uint16_t alignment(const Object& object, const char* key) {
    const std::uint64_t value = object.natural(key, 1, 256);
    check((value & (value - 1)) == 0, ErrorKind::value, object.where(), ": ", key, " is ", value,
          ", no power of two");
    return static_cast<std::uint16_t>(value);
}

void read_algorithm(const Object& object, gemm_plan::Algo& algo) {
    const std::string& text = object.member("algorithm", JsonKind::string).text;
    bool good = text.size() == 16 * std::size(algo.data);
    for (std::size_t i = 0; good && i < std::size(algo.data); ++i) {
        const char *const begin = text.data() + 16 * i, *const end = begin + 16;
        const auto [stop, error] = std::from_chars(begin, end, algo.data[i], 16);
        good = stop == end && error == std::errc();
    }
    check(good, ErrorKind::value, object.where(), ": algorithm is ", io::shown(text),
          "; 128 hexadecimal digits are expected");
    algo.workspace = object.natural("workspace", 0, max_size);
}

TunedGemm read_plan(const Object& object) {
    TunedGemm plan;
    Problem& p = plan.request.problem;
    for (const SizeField& f : sizes) p.*f.value = std::int64_t(object.natural(f.name, f.least, max_size));
    for (const AlignmentField& f : alignments) p.*f.value = alignment(object, f.name);
    for (const DtypeField& f : dtypes) p.*f.value = factor_dtypes[object.one_of(f.name, dtype_names)];
    for (const FlagField& f : flags) p.*f.value = object.flag(f.name);
    if (object.rare_flag("row_scales")) p.scales = Granularity::row;
    if (object.rare_flag("block_scales")) p.scales = Granularity::block32;
    p.epilogue = gemm_plan::Epilogue(object.one_of("most", epilogue_names));
    plan.request.activation = Activation(object.one_of("activation", activation_names));
    plan.request.keeps_before = object.flag("keeps_before");
    plan.choice.epilogue = gemm_plan::Epilogue(object.one_of("epilogue", epilogue_names));
    read_algorithm(object, plan.choice.algo);
    return plan;
}

Group read_group(const JsonValue& value, const std::string& where) {
    const Object object(value, where);
    Group group;
    group.library.device = object.member("device", JsonKind::string).text;
    group.library.major = object.natural("major", 1, 1000);
    group.library.minor = object.natural("minor", 0, 1000);
    group.library.version = object.natural("cublaslt", 1, max_size);
    for (const JsonValue& plan : object.member("plans", JsonKind::array).items)
        group.plans.push_back(
            read_plan(Object(plan, fmt::format("{}, plan {}", where, group.plans.size() + 1))));
    return group;
}

std::vector<Group> read_groups(const std::string& path) {
    const std::string where = "load_gemm_plans: " + path;
    const JsonValue root = io::parse_json_tree(io::read_text("load_gemm_plans", path, max_file_bytes), where);
    const Object object(root, where);
    const std::string& format = object.member("format", JsonKind::string).text;
    check(format == format_name, ErrorKind::value, where, ": format is ", io::shown(format), ", not \"",
          format_name, "\"");
    std::vector<Group> groups;
    for (const JsonValue& group : object.member("libraries", JsonKind::array).items)
        groups.push_back(read_group(group, fmt::format("{}: library {}", where, groups.size() + 1)));
    const std::uint64_t stored = object.member("checksum", JsonKind::natural).natural,
                        found = checksum(groups_text(groups));
    check(stored == found, ErrorKind::value, where, ": checksum is ", stored, ", the plans give ", found,
          "; the file is damaged, tune again");
    return groups;
}

const GemmPlanStore* store() {
    const Backend* const cuda = backend(DeviceType::cuda);
    return cuda != nullptr ? cuda->gemm_plans : nullptr;
}

std::vector<Group> groups_to_save() {
    std::vector<Group> groups;
    if (store() == nullptr) return groups;
    const std::vector<TunedGemm> tuned = store()->tuned();
    if (tuned.empty()) return groups;
    const std::vector<gemm_plan::Library> libraries = store()->libraries();
    // Equal GPUs share their plans. The fixed order writes equal files for equal plans.
    std::map<std::pair<std::string, std::string>, std::pair<const gemm_plan::Library*, TunedGemm>> sorted;
    for (const TunedGemm& plan : tuned) {
        const gemm_plan::Library& library = libraries.at(std::size_t(plan.request.problem.device));
        sorted.try_emplace({library.device, request_text(plan.request)}, &library, plan);
    }
    for (const auto& [key, entry] : sorted) {
        const auto& [library, plan] = entry;
        if (groups.empty() || groups.back().library != *library) groups.push_back({*library, {}});
        groups.back().plans.push_back(plan);
    }
    return groups;
}

}  // namespace

std::size_t save_gemm_plans(const std::string& path) {
    const std::vector<Group> groups = groups_to_save();
    std::size_t count = 0;
    for (const Group& group : groups) count += group.plans.size();
    if (count == 0) return 0;
    const std::string text = groups_text(groups);
    io::ReplacedFile file("save_gemm_plans", path);
    file.write(fmt::format("{{\"format\": \"{}\", \"checksum\": {}, \"libraries\": {}}}\n", format_name,
                           checksum(text), text));
    file.commit();
    return count;
}

LoadedGemmPlans load_gemm_plans(const std::string& path) {
    const std::vector<Group> groups = read_groups(path);
    const std::vector<gemm_plan::Library> libraries =
        store() != nullptr ? store()->libraries() : std::vector<gemm_plan::Library>();
    LoadedGemmPlans report;
    for (const Group& group : groups) {
        bool same_device = false, same_version = false;
        for (std::size_t device = 0; device < libraries.size(); ++device) {
            gemm_plan::Library other = libraries[device];
            const bool fits = other == group.library;
            other.version = group.library.version;
            same_device |= other == group.library;
            same_version |= fits;
            for (TunedGemm plan : fits ? group.plans : std::vector<TunedGemm>()) {
                plan.request.problem.device = int(device);
                store()->adopt(plan);
            }
        }
        (same_version  ? report.loaded
         : same_device ? report.other_version
                       : report.other_device) += group.plans.size();
    }
    return report;
}

}  // namespace mezzo::cuda
