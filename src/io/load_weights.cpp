// Copies weights by name into a module, and reports the result.
#include <fmt/format.h>

#include "io/json.h"
#include "mezzo/io.h"
#include "nn/weight_state.h"

namespace mezzo::io {

namespace {

void append_rows(std::string& out, const char* head, const std::vector<std::string>& names) {
    for (const std::string& name : names) out += fmt::format("\n  {:<11} {}", head, readable(name));
}

// Copies of tensors, decided before anything is copied.
struct Plan {
    std::vector<nn::WeightCopy> copies;
    LoadReport report;
};

// Positions of the entries of a state in the module's own one; own.size() for none.
struct Targets {
    std::vector<std::size_t> positions;
    std::vector<bool> ignored;  // the rename gives no name
};

Targets find_targets(const nn::OwnState& own, const StateDict& state, const NameMap& rename) {
    Targets targets;
    for (const auto& [name, value] : state) {
        const std::string renamed = rename(name);
        targets.ignored.push_back(renamed.empty());
        targets.positions.push_back(renamed.empty() ? own.size() : own.find(renamed));
    }
    return targets;
}

Plan make_plan(const nn::OwnState& own, const StateDict& state, const NameMap& rename) {
    const Targets targets = find_targets(own, state, rename);
    const nn::StateScales scales(state, targets.positions, own);
    std::vector<bool> given(own.size());
    Plan plan;
    for (std::size_t i = 0; i < state.size(); ++i) {
        if (scales.is_scale(i) || targets.ignored[i]) continue;
        const auto& [name, value] = state[i];
        const std::size_t t = targets.positions[i];
        if (t == own.size() || own.is_scale(t) || !value.defined()) {
            plan.report.unexpected.push_back(name);
            continue;
        }
        const auto& [own_name, tensor] = own.entries()[t];
        const bool first = !given[t];
        given[t] = true;
        if (!(value.shape() == tensor.shape())) {
            plan.report.mismatched.push_back({own_name, value.shape(), tensor.shape()});
            continue;
        }
        if (first) plan.report.loaded.push_back(own_name);
        plan.copies.push_back({t, name, {value.detach(), scales.of(i)}});
        if (nn::lacks_scale(own.weight(t), plan.copies.back().from))
            plan.report.missing.push_back(own_name + "_scale");
    }
    for (std::size_t t = 0; t < own.size(); ++t)
        if (!given[t] && !own.is_scale(t)) plan.report.missing.push_back(own.entries()[t].first);
    return plan;
}

}  // namespace

std::string LoadReport::to_string() const {
    std::string out = fmt::format("loaded {}, missing {}, of another shape {}, unexpected {}", loaded.size(),
                                  missing.size(), mismatched.size(), unexpected.size());
    append_rows(out, "missing", missing);
    for (const ShapeMismatch& m : mismatched)
        out += fmt::format("\n  {:<11} {}: {} in the file, {} in the model", "shape", readable(m.name),
                           detail::text_of(m.in_file), detail::text_of(m.in_model));
    append_rows(out, "unexpected", unexpected);
    return out;
}

LoadReport load_weights(nn::Module& module, const StateDict& state, const LoadOptions& options) {
    const nn::OwnState own(module);
    const Plan plan = make_plan(own, state, options.rename);
    const LoadReport& report = plan.report;
    if (!report.mismatched.empty() && !options.ignore_mismatched)
        fail(ErrorKind::shape, "load_weights: ", module.type_name(), ": shapes differ; of the file could be ",
             report.to_string(), "\nnothing was loaded; ignore_mismatched leaves such entries out");
    if (!report.missing.empty() && options.strict)
        fail(ErrorKind::value, "load_weights: ", module.type_name(),
             ": names are missing; of the file could be ", report.to_string(), "\nnothing was loaded");
    nn::check_copies("load_weights", own, plan.copies);
    nn::copy_weights(own, plan.copies);
    return report;
}

}  // namespace mezzo::io
