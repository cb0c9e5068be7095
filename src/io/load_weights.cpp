// Copies weights by name into a module, and reports the result.
#include <fmt/format.h>

#include <algorithm>

#include "core/sorting.h"
#include "io/json.h"
#include "mezzo/io.h"
#include "nn/weight_state.h"

namespace mezzo::io {

namespace {

// Finds the position of a name in a state.
class Names {
public:
    explicit Names(const StateDict& state) : state_(state) {
        order_ = sorted_indices(
            state.size(), [&](std::size_t a, std::size_t b) { return state_[a].first < state_[b].first; });
    }
    // Returns the size of the state if there is no such name.
    std::size_t find(std::string_view name) const {
        const auto less = [&](std::size_t i, std::string_view n) { return state_[i].first < n; };
        const auto at = std::lower_bound(order_.begin(), order_.end(), name, less);
        return at != order_.end() && state_[*at].first == name ? *at : state_.size();
    }

private:
    const StateDict& state_;
    std::vector<std::size_t> order_;
};

std::string text_of(const Shape& shape) {
    std::string text;
    detail::Item(shape).append_to(text);
    return text;
}

// Returns the name, quoted if it is long or has characters that would disturb a table.
std::string readable(const std::string& name) {
    const std::string quoted = shown(name);
    return quoted.size() == name.size() + 2 ? name : quoted;
}

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
    const Names names(own.entries());
    Targets targets;
    for (const auto& [name, value] : state) {
        const std::string renamed = rename(name);
        targets.ignored.push_back(renamed.empty());
        targets.positions.push_back(renamed.empty() ? own.size() : names.find(renamed));
    }
    return targets;
}

Plan make_plan(const nn::Module& module, const nn::OwnState& own, const StateDict& state,
               const NameMap& rename) {
    const Targets targets = find_targets(own, state, rename);
    const nn::StateScales scales(state, targets.positions, own);
    constexpr std::size_t none = ~std::size_t(0);
    std::vector<std::size_t> source(own.size(), none);
    Plan plan;
    for (std::size_t i = 0; i < state.size(); ++i) {
        if (scales.is_scale(i) || targets.ignored[i]) continue;
        const auto& [name, value] = state[i];
        const std::size_t target = targets.positions[i];
        if (target == own.size() || own.is_scale(target) || !value.defined()) {
            plan.report.unexpected.push_back(name);
            continue;
        }
        if (source[target] != none)
            fail(ErrorKind::value, "load_weights: both ", shown(state[source[target]].first), " and ",
                 shown(name), " are ", shown(own.entries()[target].first), " of ", module.type_name());
        source[target] = i;
    }
    for (std::size_t t = 0; t < own.size(); ++t) {
        const auto& [name, tensor] = own.entries()[t];
        if (own.is_scale(t)) continue;
        if (source[t] == none) {
            plan.report.missing.push_back(name);
            continue;
        }
        const auto& [given_name, value] = state[source[t]];
        if (!(value.shape() == tensor.shape())) {
            plan.report.mismatched.push_back({name, value.shape(), tensor.shape()});
            continue;
        }
        plan.report.loaded.push_back(name);
        plan.copies.push_back({t, given_name, {value.detach(), scales.of(source[t])}});
        if (nn::lacks_scale(own.weight(t), plan.copies.back().from))
            plan.report.missing.push_back(name + "_scale");
    }
    return plan;
}

}  // namespace

std::string LoadReport::to_string() const {
    std::string out = fmt::format("loaded {}, missing {}, of another shape {}, unexpected {}", loaded.size(),
                                  missing.size(), mismatched.size(), unexpected.size());
    append_rows(out, "missing", missing);
    for (const ShapeMismatch& m : mismatched)
        out += fmt::format("\n  {:<11} {}: {} in the file, {} in the model", "shape", readable(m.name),
                           text_of(m.in_file), text_of(m.in_model));
    append_rows(out, "unexpected", unexpected);
    return out;
}

LoadReport load_weights(nn::Module& module, const StateDict& state, const LoadOptions& options) {
    const nn::OwnState own(module);
    const Plan plan = make_plan(module, own, state, options.rename);
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
