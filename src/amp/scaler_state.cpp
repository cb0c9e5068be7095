// Saving and restoring a GradScaler.
#include <cmath>

#include "mezzo/grad_scaler.h"

namespace mezzo::amp {

namespace {

double number(const StateDict& state, const char* key) {
    for (const auto& [name, value] : state) {
        if (name != key || !value.defined()) continue;
        check(value.numel() == 1, ErrorKind::shape, "GradScaler.load_state_dict: ", key, " has shape ",
              value.shape(), ", one number is needed");
        return value.item<double>();
    }
    fail(ErrorKind::value, "GradScaler.load_state_dict: ", key, " is missing from ", state.size(), " entries",
         state.empty() ? "; it was saved by a disabled scaler" : "");
}

bool has(const StateDict& state, const char* key) {
    for (const auto& [name, value] : state)
        if (name == key && value.defined()) return true;
    return false;
}

}  // namespace

StateDict GradScaler::state_dict() const {
    if (!options_.enabled) return {};
    const std::vector<float> state = read_state();
    const auto entry = [](double value) { return scalar(value, {.dtype = float64}); };
    return {{"scale", entry(state[0])},
            {"growth_factor", entry(options_.growth_factor)},
            {"backoff_factor", entry(options_.backoff_factor)},
            {"growth_interval", entry(double(options_.growth_interval))},
            {"_growth_tracker", entry(state[1])},
            {"hysteresis", entry(state[2])}};
}

void GradScaler::load_state_dict(const StateDict& state) {
    if (!options_.enabled) return;
    GradScalerOptions options = options_;
    options.init_scale = number(state, "scale");
    options.growth_factor = number(state, "growth_factor");
    options.backoff_factor = number(state, "backoff_factor");
    options.growth_interval = std::int64_t(number(state, "growth_interval"));
    const double tracker = number(state, "_growth_tracker");
    const double hysteresis =
        has(state, "hysteresis") ? number(state, "hysteresis") : double(options.hysteresis);
    check(tracker >= 0 && std::isfinite(tracker) && std::isfinite(hysteresis), ErrorKind::value,
          "GradScaler.load_state_dict: the growth tracker is ", tracker, " and hysteresis ", hysteresis);
    GradScalerOptions unbounded = options;  // a saved scale may lie outside this scaler's floor and cap
    unbounded.dynamic = false;
    const GradScaler validated(unbounded);
    options.init_scale = options_.init_scale;
    options_ = options;
    set_state(validated.scale_, float(tracker), float(hysteresis));
}

}  // namespace mezzo::amp
