// Saving and restoring a GradScaler, a new scale, and how its options are printed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ostream>

#include "amp/scaler_impl.h"

namespace mezzo::amp {

void GradScaler::update(double new_scale) {
    ScalerImpl& s = impl();
    if (!s.options.enabled) return;
    check_scale("the new scale", new_scale);
    s.initial.scale = float(new_scale);
    if (s.state.defined()) {
        s.set_scale(full({1}, new_scale, {.device = s.state.device()}));
    } else {
        s.per_optimizer.clear();
    }
    s.renew_scale();
}

void GradScaler::update(const Tensor& new_scale) {
    ScalerImpl& s = impl();
    if (!s.options.enabled) return;
    check(new_scale.defined() && new_scale.numel() == 1 && new_scale.dtype() == float32 &&
              !new_scale.requires_grad(),
          ErrorKind::value,
          "GradScaler.update: the new scale must be one float32 number that does not require grad");
    s.state_on(new_scale.device());
    s.set_scale(new_scale.reshape({1}));
    s.renew_scale();
}

namespace {

constexpr const char* keys[] = {"scale",           "growth_factor",   "backoff_factor",
                                "growth_interval", "_growth_tracker", "hysteresis"};

const Tensor* find(const StateDict& state, const char* key) {
    for (const auto& [name, value] : state)
        if (name == key && value.defined()) return &value;
    return nullptr;
}

double number(const StateDict& state, const char* key) {
    const Tensor* const value = find(state, key);
    check(value != nullptr, ErrorKind::value, "GradScaler.load_state_dict: ", key, " is missing from ",
          state.size(), " entries", state.empty() ? "; it was saved by a disabled scaler" : "");
    check(value->numel() == 1, ErrorKind::shape, "GradScaler.load_state_dict: ", key, " has shape ",
          value->shape(), ", one number is needed");
    return value->item<double>();
}

// Reads a count. The device stores it as float32, which is exact below 2^24.
double count(const StateDict& state, const char* key) {
    const double value = number(state, key);
    check(value >= 0 && value < 16777216 && value == std::floor(value), ErrorKind::value,
          "GradScaler.load_state_dict: ", key, " is ", value, "; it must be a whole number in [0, 2^24)");
    return value;
}

void refuse_unknown(const StateDict& state) {
    std::string unknown;
    for (const auto& [name, value] : state)
        if (std::find(std::begin(keys), std::end(keys), name) == std::end(keys))
            unknown += (unknown.empty() ? "" : ", ") + name;
    check(unknown.empty(), ErrorKind::value, "GradScaler.load_state_dict: unknown entries: ", unknown,
          "; load the state_dict() of a GradScaler");
}

}  // namespace

StateDict GradScaler::state_dict() const {
    const ScalerImpl& s = impl();
    if (!s.options.enabled) return {};
    const ScaleValues now = s.snapshot().values;
    const auto entry = [](double value) { return scalar(value, {.dtype = float64}); };
    return {{"scale", entry(now.scale)},
            {"growth_factor", entry(s.options.growth_factor)},
            {"backoff_factor", entry(s.options.backoff_factor)},
            {"growth_interval", entry(double(s.options.growth_interval))},
            {"_growth_tracker", entry(now.growth_tracker)},
            {"hysteresis", entry(now.hysteresis_left)}};
}

void GradScaler::load_state_dict(const StateDict& state) {
    ScalerImpl& s = impl();
    if (!s.options.enabled) return;
    refuse_unknown(state);
    const double scale = number(state, "scale"), growth = number(state, "growth_factor"),
                 backoff = number(state, "backoff_factor"), interval = number(state, "growth_interval"),
                 tracker = count(state, "_growth_tracker");
    const double hysteresis =
        find(state, "hysteresis") ? count(state, "hysteresis") : double(s.options.hysteresis);
    check_scale("the loaded scale", scale);  // it may be outside this scaler's floor and cap
    check_factors(growth, backoff, interval);
    s.set_state({float(scale), float(tracker), float(hysteresis)});
    s.renew_scale();
    s.options.growth_factor = growth;
    s.options.backoff_factor = backoff;
    s.options.growth_interval = std::int64_t(interval);
    s.has_scaled = true;
}

std::ostream& operator<<(std::ostream& out, const GradScalerOptions& o) {
    return out << fmt::format(
               "GradScalerOptions(init_scale={}, growth_factor={}, backoff_factor={}, growth_interval={}, "
               "enabled={}, dynamic={}, min_scale={}, max_scale={}, hysteresis={}, "
               "refill_every_clean_step={}, at_floor={}, recheck={}, unscale_in_step={}, "
               "allow_no_gradients={})",
               o.init_scale, o.growth_factor, o.backoff_factor, o.growth_interval, o.enabled, o.dynamic,
               o.min_scale, o.max_scale, o.hysteresis, o.refill_every_clean_step,
               o.at_floor == AtFloor::clamp ? "clamp" : "fail", o.recheck, o.unscale_in_step,
               o.allow_no_gradients);
}

}  // namespace mezzo::amp
