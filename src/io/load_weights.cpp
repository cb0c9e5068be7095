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

// Source of each tensor, decided before anything is copied.
struct Plan {
    static constexpr std::size_t none = ~std::size_t(0);
    std::vector<std::size_t> source;  // per tensor of the model: an entry of the state, or none
    LoadReport report;
};

Plan make_plan(const nn::Module& module, const StateDict& own, const StateDict& state,
               const NameMap& rename) {
    const Names names(own);
    const nn::StateScales own_scales(own), scales(state);
    Plan plan;
    plan.source.assign(own.size(), Plan::none);
    std::vector<bool> fits(own.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
        if (scales.is_scale(i)) continue;
        const auto& [name, value] = state[i];
        const std::string renamed = rename(name);
        if (renamed.empty()) continue;
        const std::size_t target = names.find(renamed);
        if (target == own.size() || !value.defined()) {
            plan.report.unexpected.push_back(name);
            continue;
        }
        if (plan.source[target] != Plan::none)
            fail(ErrorKind::value, "load_weights: both ", shown(state[plan.source[target]].first), " and ",
                 shown(name), " are ", shown(renamed), " of ", module.type_name());
        plan.source[target] = i;
        fits[target] = value.shape() == own[target].second.shape();
        nn::check_scale("load_weights", name, {value, scales.of(i)});
    }
    for (std::size_t t = 0; t < own.size(); ++t) {
        const auto& [name, tensor] = own[t];
        if (own_scales.is_scale(t)) continue;
        if (plan.source[t] == Plan::none) {
            plan.report.missing.push_back(name);
        } else if (fits[t]) {
            plan.report.loaded.push_back(name);
        } else {
            plan.report.mismatched.push_back({name, state[plan.source[t]].second.shape(), tensor.shape()});
            plan.source[t] = Plan::none;
        }
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
    const StateDict own = module.state_dict();
    const Plan plan = make_plan(module, own, state, options.rename);
    const LoadReport& report = plan.report;
    if (!report.mismatched.empty() && !options.ignore_mismatched)
        fail(ErrorKind::shape, "load_weights: ", module.type_name(), ": shapes differ; of the file could be ",
             report.to_string(), "\nnothing was loaded; ignore_mismatched leaves such entries out");
    if (!report.missing.empty() && options.strict)
        fail(ErrorKind::value, "load_weights: ", module.type_name(),
             ": names are missing; of the file could be ", report.to_string(), "\nnothing was loaded");
    const NoGrad plain;
    const nn::StateScales own_scales(own), scales(state);
    for (std::size_t t = 0; t < own.size(); ++t)
        if (const std::size_t i = plan.source[t]; i != Plan::none)
            nn::copy_weight({own[t].second, own_scales.of(t)}, {state[i].second.detach(), scales.of(i)});
    return report;
}

}  // namespace mezzo::io
