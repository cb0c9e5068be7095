// Optimizer types: rules and names of their options, and the constructors of those of kernels/optimizers.h.
#include "optim/optimizer_type.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <ostream>

#include "core/fnv1a.h"
#include "kernels/functor_step.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

void require(bool condition, const std::string& where, const std::string& option, double value,
             const char* rule) {
    check(condition, ErrorKind::value, where, ": ", option, " is ", value, "; it must be ", rule);
}

void check_option(const std::string& where, const OptionInfo& info, double value) {
    const bool finite = std::isfinite(value);
    if (info.flag) return require(value == 0 || value == 1, where, info.name, value, "0 or 1");
    if (info.whole) require(!finite || value == std::floor(value), where, info.name, value, "a whole number");
    switch (info.rule) {
        case Rule::not_negative:
            return require(finite && value >= 0, where, info.name, value, "finite and >= 0");
        case Rule::below_one:
            return require(value >= 0 && value < 1, where, info.name, value, "in [0, 1)");
        default:
            require(finite, where, info.name, value, "finite");
    }
    if (!(value >= info.low && value <= info.high))
        require(false, where, info.name, value, fmt::format("in [{:g}, {:g}]", info.low, info.high).c_str());
}

constexpr const char* state_precisions[] = {"fp32", "bf16", "eight_bit", "both_eight_bit"};

struct ListOptions {
    std::vector<OptionInfo>& list;
    template <class R> void operator()(const char* name, double, R rule) { list.push_back({name, rule}); }
    void operator()(const char* name, bool) { list.push_back({.name = name, .flag = true}); }
    void storage(StatePrecision, bool) {
        list.push_back({.name = "states",
                        .saved = false,
                        .whole = true,
                        .enumerators = state_precisions,
                        .low = 0,
                        .high = double(std::size(state_precisions) - 1)});
        list.push_back({.name = "narrow_all", .flag = true, .saved = false});
    }
    void require(bool, const char*) {}
};

struct FindProblem {
    const char* problem = nullptr;
    template <class R> void operator()(const char*, double, R) {}
    void operator()(const char*, bool) {}
    void storage(StatePrecision, bool) {}
    void require(bool holds, const char* rule) {
        if (!holds) problem = rule;
    }
};

template <class Row> unsigned used(const StepArgs& args) {
    return Row::used(Row::way(functors::options_of<Row>(args)));
}
template <class Row> const char* problem(const StepArgs& args) {
    typename Row::Options options = functors::options_of<Row>(args);
    FindProblem find;
    Row::options(options, find);
    return find.problem;
}

template <class Row> constexpr bool has_storage = requires { &Row::storage; };
template <class Row> StateStorage storage(const StepArgs& args) {
    if constexpr (has_storage<Row>) return Row::storage(functors::options_of<Row>(args));
    return {};
}
template <class Row> constexpr unsigned signed_state() {
    if constexpr (has_storage<Row>) return Row::signed_state;
    return 0;
}

// SGD, Adam and AdamW keep the codes that earlier versions wrote.
double code_of(OptimizerId id, const char* type) {
    const bool first = id == OptimizerId::SGD || id == OptimizerId::Adam || id == OptimizerId::AdamW;
    return first ? double(int(id)) : type_code(type);
}

// Names and functions of an optimizer type, from its row in kernels/optimizers.h.
struct RowTable {
    const char* type;
    std::span<const char*const> state, numbers;
    void (*list)(std::vector<OptionInfo>& options);
    unsigned (*used)(const StepArgs& args);
    const char* (*problem)(const StepArgs& args);
    StateStorage (*storage)(const StepArgs& args);
    unsigned signed_state;
    bool counts_from_state;
};

template <class Row> void list_options(std::vector<OptionInfo>& options) {
    const typename Row::Options defaults{};
    ListOptions list{options};
    Row::options(defaults, list);
}

template <class Row> constexpr RowTable table_of(const char* type) {
    static_assert(std::size(Row::state) <= max_optimizer_state);
    return {type,
            Row::state,
            Row::counted,
            list_options<Row>,
            used<Row>,
            problem<Row>,
            has_storage<Row> ? storage<Row> : nullptr,
            signed_state<Row>(),
            Row::counts_from_state};
}

constexpr RowTable rows[] = {
#define MEZZO_OPTIMIZER(name) table_of<functors::name##Row>(#name),
#include "mezzo/optimizers.def"
};

std::shared_ptr<const OptimizerType> make_kind(OptimizerId id) {
    const RowTable& row = rows[int(id)];
    auto kind = std::make_shared<OptimizerType>();
    kind->type = row.type;
    kind->code = code_of(id, row.type);
    kind->row = id;
    row.list(kind->options);
    check(int(kind->options.size()) <= max_optimizer_options, ErrorKind::state, row.type,
          ": too many options");
    kind->state.assign(row.state.begin(), row.state.end());
    kind->numbers.assign(row.numbers.begin(), row.numbers.end());
    kind->used = row.used;
    kind->problem = row.problem;
    kind->storage = row.storage;
    kind->signed_state = row.signed_state;
    kind->counts_from_state = row.counts_from_state;
    return kind;
}

std::string value_text(const OptionInfo& option, double value) {
    if (value >= 0 && value < double(option.enumerators.size()))
        return option.enumerators[std::size_t(value)];
    return option.flag ? fmt::format("{}", value != 0) : fmt::format("{}", value);
}

std::string listed(const OptimizerType& kind, std::span<const double> options) {
    std::string text;
    for (std::size_t i = 0; i < options.size(); ++i)
        text += (i == 0 ? "" : ", ") + kind.options[i].name + " " + value_text(kind.options[i], options[i]);
    return text;
}

}  // namespace

std::string text_of(const OptimizerType& kind, std::span<const double> values) {
    std::string text;
    for (std::size_t i = 0; i < kind.options.size(); ++i) {
        const OptionInfo& option = kind.options[i];
        if (!option.saved && values[i] == 0) continue;
        if (i != 0) text += ", ";
        text += option.name + "=" + value_text(option, values[i]);
    }
    return text;
}

int OptimizerType::find(std::string_view option) const {
    for (std::size_t i = 0; i < options.size(); ++i)
        if (options[i].name == option) return int(i);
    return -1;
}

std::shared_ptr<const OptimizerType> kind_of(OptimizerId id) {
    // Never destroyed: threads may train during exit().
    static const auto& kinds = *[] {
        auto* const made = new std::vector<std::shared_ptr<const OptimizerType>>;
        made->reserve(optimizer_count);
        for (int i = 0; i < optimizer_count; ++i) made->push_back(make_kind(OptimizerId(i)));
        return made;
    }();
    return kinds[std::size_t(id)];
}

double type_code(std::string_view type) {
    return double((fnv1a(type) >> 12) | 1024);  // whole, exact as a double, and none of the first three codes
}

void check_rate(const std::string& where, double lr) {
    check_option(where, {.name = "lr", .rule = Rule::not_negative}, lr);
}

void check_options(const std::string& where, const OptimizerType& kind, std::span<const double> options) {
    for (std::size_t i = 0; i < options.size(); ++i) check_option(where, kind.options[i], options[i]);
    if (kind.problem == nullptr) return;
    StepArgs args{.optimizer = kind.row};
    std::copy(options.begin(), options.end(), args.options);
    if (const char* const problem = kind.problem(args))
        fail(ErrorKind::value, where, ": ", problem, "; the options are ", listed(kind, options));
}

namespace {

template <class Options> std::vector<double> values_of(const OptimizerType& kind, const Options& options) {
    const StepArgs args = functors::step_args(options);
    return {args.options, args.options + kind.options.size()};
}

template <class Options>
OptimizerImpl* make(OptimizerId id, const Tensors& params, const StateDict& named, const Options& options) {
    std::unique_ptr<OptimizerImpl> optimizer = make_optimizer(kind_of(id));
    add_group(*optimizer, params, named, values_of(*optimizer->kind, options));
    check(!optimizer->slots.empty(), ErrorKind::value, optimizer->type, ": the list of parameters is empty");
    return optimizer.release();
}

template <class Group> OptimizerImpl* make(OptimizerId id, const std::vector<Group>& groups) {
    std::unique_ptr<OptimizerImpl> optimizer = make_optimizer(kind_of(id));
    for (const Group& group : groups)
        add_group(*optimizer, group.params, group.named_params, values_of(*optimizer->kind, group.options));
    check(!optimizer->slots.empty(), ErrorKind::value, optimizer->type, ": the ", groups.size(),
          " groups hold no parameter");
    return optimizer.release();
}

}  // namespace

#define MEZZO_OPTIMIZER(name)                                                                          \
    name::name(const Tensors& params, const name##Options& options)                                    \
        : Optimizer(make(OptimizerId::name, params, {}, options)) {}                                   \
    name::name(const StateDict& named_params, const name##Options& options)                            \
        : Optimizer(make(OptimizerId::name, {}, named_params, options)) {}                             \
    name::name(const std::vector<name##Group>& groups) : Optimizer(make(OptimizerId::name, groups)) {} \
    std::ostream& operator<<(std::ostream& out, const name##Options& options) {                        \
        const std::shared_ptr<const OptimizerType> kind = kind_of(OptimizerId::name);                  \
        return out << #name "Options(" << text_of(*kind, values_of(*kind, options)) << ')';            \
    }
#include "mezzo/optimizers.def"

}  // namespace mezzo::optim
