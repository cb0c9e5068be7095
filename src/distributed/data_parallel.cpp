#include "mezzo/distributed/data_parallel.h"

#include <cstdlib>
#include <exception>

#include "core/enumerators.h"
#include "distributed/environment.h"
#include "distributed/rank_checks.h"
#include "distributed/reducer.h"
#include "mezzo/quantize.h"

namespace mezzo::distributed {

namespace {

constexpr int most_reductions = 1'000'000'000;  // between two comparisons of the parameters
constexpr const char* same_model = "all ranks must make the same model, with the same options";

void check_options(const DataParallelOptions& options) {
    check_enumerator("DataParallel", "unused", options.unused, Unused::fail);
    for (const std::int64_t bytes : {options.first_bucket_bytes, options.bucket_bytes})
        check(bytes >= 1, ErrorKind::value, "DataParallel: a bucket of ", bytes,
              " bytes; at least 1 is needed");
    check(options.wire == float32 || is_16bit(options.wire), ErrorKind::value, "DataParallel: wire is ",
          options.wire, "; it can be float32, float16 or bfloat16");
    check(options.check_interval >= 0 && options.check_interval <= most_reductions, ErrorKind::value,
          "DataParallel: check_interval is ", options.check_interval, "; it must be from 0 to ",
          most_reductions);
}

std::string describe(const char* what, const std::string& name, const Tensor& x) {
    return std::string(what) + " " + name + " " + mezzo::name(x.dtype()) + " " +
           mezzo::detail::text_of(x.shape()) + (x.requires_grad() ? "" : " without gradient");
}

// The scales of 8-bit weights.
StateDict scales_of(const StateDict& parameters) {
    StateDict scales;
    for (const auto& [name, x] : parameters)
        if (const Tensor scale = weight_scale(x); scale.defined()) scales.emplace_back(name, scale);
    return scales;
}

std::vector<std::string> describe(const StateDict& parameters, const StateDict& buffers,
                                  const DataParallelOptions& options) {
    std::vector<std::string> lines;
    for (const auto& [name, x] : parameters) lines.push_back(describe("parameter", name, x));
    for (const auto& [name, x] : scales_of(parameters)) lines.push_back(describe("scale of", name, x));
    for (const auto& [name, x] : buffers) lines.push_back(describe("buffer", name, x));
    lines.push_back("first_bucket_bytes = " + std::to_string(options.first_bucket_bytes));
    lines.push_back("bucket_bytes = " + std::to_string(options.bucket_bytes));
    lines.push_back(std::string("wire = ") + mezzo::name(options.wire));
    lines.push_back("check_interval = " + std::to_string(options.check_interval));
    const auto push_flag = [&](const char* name, bool value) {
        lines.push_back(std::string(name) + (value ? " = true" : " = false"));
    };
    push_flag("ordered", options.ordered);
    push_flag("overlap", options.overlap);
    push_flag("gradients_in_buckets", options.gradients_in_buckets);
    lines.push_back(options.unused == Unused::fail ? "unused = fail" : "unused = zero");
    return lines;
}

}  // namespace

DataParallel::DataParallel(const nn::Module& module, const Group& group, const DataParallelOptions& options)
    : group_(group), buffers_(module.named_buffers()) {
    check_options(options);
    if (group.size() == 1) return;
    const StateDict parameters = module.named_parameters();
    DataParallelOptions with_environment = options;
    if (options.check_interval == 0)
        with_environment.check_interval =
            number_or_0("DataParallel", std::getenv, "MEZZO_DISTRIBUTED_CHECK", most_reductions);
    const Ref<Reducer> reducer(new Reducer(parameters, group, with_environment));
    require_same_lines({.call = Call::model, .op = "DataParallel", .hint = same_model},
                       describe(parameters, buffers_, with_environment), group.impl());
    broadcast_values(parameters, group.impl());
    broadcast_values(scales_of(parameters), group.impl());
    broadcast_values(buffers_, group.impl());
    reducer->attach();
    reducer_ = reducer.get();
    add_reference(reducer_->refs);
}

DataParallel::~DataParallel() {
    if (reducer_ == nullptr) return;
    reducer_->detach(std::uncaught_exceptions() == 0);
    if (drop_reference(reducer_->refs)) dispose(reducer_);
}

void DataParallel::reduce() {
    if (reducer_ != nullptr) reducer_->reduce();
}

void DataParallel::broadcast_buffers() {
    if (reducer_ != nullptr) broadcast_values(buffers_, group_.impl());
}

std::vector<std::vector<std::string>> DataParallel::buckets() const {
    return reducer_ != nullptr ? reducer_->names_by_bucket() : std::vector<std::vector<std::string>>{};
}

DataParallel::Local::Local(DataParallel& parallel) : reducer_(parallel.reducer_) {
    if (reducer_ != nullptr) reducer_->enter_local();
}

DataParallel::Local::~Local() {
    if (reducer_ != nullptr) reducer_->leave_local();
}

}  // namespace mezzo::distributed
