// The scaler's options and its state on the device.
#include "amp/scaler_impl.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/enumerators.h"
#include "core/step_recorder.h"
#include "core/system/log_line.h"
#include "mezzo/ops.h"

namespace mezzo::amp {

namespace {

Tensor state_tensor(const ScaleValues& values, Device device) {
    const ScalerState state{.current = values, .found_inf = 0, .previous = values, .pad = {}};
    NoGrad plain;
    constexpr int count = sizeof state / sizeof(float);
    const std::span<const float> floats(reinterpret_cast<const float*>(&state), count);
    return Tensor::from<float>(floats, {count}).to(device);
}

}  // namespace

void check_factors(double growth, double backoff, double interval) {
    check(std::isfinite(growth) && growth > 1, ErrorKind::value, "GradScaler: growth_factor is ", growth,
          "; it must be > 1");
    check(backoff > 0 && backoff < 1, ErrorKind::value, "GradScaler: backoff_factor is ", backoff,
          "; it must be in (0, 1)");
    check(interval >= 1 && interval < 16777216 && interval == std::floor(interval), ErrorKind::value,
          "GradScaler: growth_interval is ", interval, "; it must be a whole number in [1, 2^24)");
}

void check_scale(const char* what, double scale) {
    check(float(scale) > 0 && std::isfinite(float(scale)), ErrorKind::value, "GradScaler: ", what, " is ",
          scale, "; it must be positive and finite in float32");
}

void check_options(const GradScalerOptions& options) {
    check_enumerator("GradScaler", "at_floor", options.at_floor, AtFloor::fail);
    check_scale("init_scale", options.init_scale);
    check_factors(options.growth_factor, options.backoff_factor, double(options.growth_interval));
    check(options.min_scale >= 0 && options.min_scale <= options.max_scale, ErrorKind::value,
          "GradScaler: min_scale is ", options.min_scale, " and max_scale ", options.max_scale,
          "; 0 <= min_scale <= max_scale is needed");
    check(options.hysteresis >= 1 && options.hysteresis < 16777216, ErrorKind::value,
          "GradScaler: hysteresis is ", options.hysteresis, "; it must be in [1, 2^24)");
    check(!options.dynamic || options.min_scale <= options.init_scale, ErrorKind::value,
          "GradScaler: init_scale ", options.init_scale, " is below min_scale ", options.min_scale);
}

ScalerImpl::ScalerImpl(const GradScalerOptions& given)
    : options(given), initial{float(given.init_scale), 0, float(given.hysteresis)} {
    check_options(given);
    static std::atomic<std::uint32_t> scalers{0};
    constexpr std::uint32_t most = (1U << (32 - scaler_shift)) - 1;
    scale_id = first_scale(scalers.fetch_add(1, std::memory_order_relaxed) % most + 1);
    if (given.dynamic) initial.scale = float(std::min(given.init_scale, given.max_scale));
}

namespace {
void release(ScalerImpl* scaler) noexcept {
    if (scaler != nullptr && drop_reference(scaler->refs)) dispose(scaler);
}
}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : impl_(new ScalerImpl(options)) {
    add_reference(impl_->refs);
}
GradScaler::GradScaler(GradScaler&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
GradScaler& GradScaler::operator=(GradScaler&& other) noexcept {
    if (this != &other) release(std::exchange(impl_, std::exchange(other.impl_, nullptr)));
    return *this;
}
GradScaler::~GradScaler() { release(impl_); }

ScalerImpl& GradScaler::impl() const {
    check(impl_ != nullptr, ErrorKind::state,
          "GradScaler: it has been moved from; use the scaler it was moved to");
    return *impl_;
}

Tensor& ScalerImpl::state_on(Device device) {
    if (!state.defined()) {
        state = state_tensor(initial, device);
    } else if (!(state.device() == device)) {
        check(per_optimizer.empty(), ErrorKind::device, "GradScaler: it works on ", state.device(),
              " in this iteration, got ", device, "; use one scaler per device");
        NoGrad plain;
        state = state.to(device);
    }
    return state;
}

void ScalerImpl::writable_state(Device device) {
    state_on(device);
    if (state->storage->refs.load() > 1) {
        NoGrad plain;
        state = state.clone();
    }
    optim::bump_version(state);
}

void ScalerImpl::set_state(const ScaleValues& values) {
    if (state.defined()) {
        const Tensor fresh = state_tensor(values, state.device());
        writable_state(state.device());
        state.copy_(fresh);
        advanced_with.reset();
    }
    initial = values;
}

// The growth tracker keeps its value from before this iteration's checks.
void ScalerImpl::set_scale(const Tensor& new_scale) {
    NoGrad plain;
    const bool checked = any_checked();
    writable_state(new_scale.device());
    if (checked) {
        state.slice(0, 1, 3).copy_(state.slice(0, previous_scale + 1, previous_scale + 3));
    }
    state.slice(0, 0, 1).copy_(new_scale);
    per_optimizer.clear();
}

void ScalerImpl::check_floor() const {
    const ScalerSnapshot now = snapshot();
    check(!now.backs_off() || now.values.scale > float(options.min_scale), ErrorKind::value,
          "GradScaler.update: overflow at scale ", now.values.scale,
          ", which is min_scale already; the loss itself, or the model in 16 bit, has left the range");
}

// Logs once that the scale cannot fall any further.
void ScalerImpl::report_floor(const ScalerSnapshot& now) const {
    if (!options.dynamic || now.values.scale > float(options.min_scale)) {
        reported_floor = false;
        return;
    }
    if (!now.backs_off() || std::exchange(reported_floor, true)) return;
    log_line(
        fmt::format("GradScaler: overflow at scale {:g}, which is min_scale: the scale cannot fall further, "
                    "and steps are "
                    "skipped while gradients overflow; insight::replay() names the op that left the range",
                    now.values.scale));
}

ScalerSnapshot ScalerImpl::snapshot() const {
    if (!state.defined()) return {initial, false};
    const auto on_device = optim::read_struct<ScalerState>(state);
    const bool checked = any_checked();
    const ScalerSnapshot now{checked ? on_device.previous : on_device.current,
                             checked && on_device.found_inf != 0};
    report_floor(now);
    return now;
}

double GradScaler::get_scale() const {
    const ScalerImpl& s = impl();
    if (!s.options.enabled) return 1;
    return double(s.snapshot().values.scale);
}

std::int64_t GradScaler::get_growth_tracker() const {
    const ScalerImpl& s = impl();
    if (!s.options.enabled) return 0;
    return std::int64_t(s.snapshot().values.growth_tracker);
}

void GradScaler::set_growth_factor(double factor) {
    ScalerImpl& s = impl();
    check_factors(factor, s.options.backoff_factor, double(s.options.growth_interval));
    s.options.growth_factor = factor;
}
void GradScaler::set_backoff_factor(double factor) {
    ScalerImpl& s = impl();
    check_factors(s.options.growth_factor, factor, double(s.options.growth_interval));
    s.options.backoff_factor = factor;
}
void GradScaler::set_growth_interval(std::int64_t interval) {
    ScalerImpl& s = impl();
    check_factors(s.options.growth_factor, s.options.backoff_factor, double(interval));
    s.options.growth_interval = interval;
}

bool GradScaler::found_inf() const {
    const ScalerImpl& s = impl();
    return s.options.enabled && s.any_checked() && s.snapshot().found_inf;
}

double GradScaler::get_growth_factor() const { return impl().options.growth_factor; }
double GradScaler::get_backoff_factor() const { return impl().options.backoff_factor; }
std::int64_t GradScaler::get_growth_interval() const { return impl().options.growth_interval; }
bool GradScaler::is_enabled() const { return impl().options.enabled; }
const GradScalerOptions& GradScaler::options() const { return impl().options; }

std::vector<std::string> GradScaler::overflowed_parameters(const optim::Optimizer& optimizer) const {
    const optim::OptimizerImpl& own = optimizer.impl();
    const optim::GradientList list =
        optim::gradient_list("GradScaler", own.params(), optim::PendingFactors::apply);
    if (list.refs.empty()) return {};
    const Tensor flags = empty({std::int64_t(list.refs.size())}, {.device = list.device});
    optim::kernels_of(list.device).flag_nonfinite(list.refs, state_of<float>(flags));
    std::vector<std::string> names;
    const std::vector<float> values = flags.to_vector<float>();
    for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] != 0) names.push_back(own.describe(list.indices[i]));
    return names;
}

}  // namespace mezzo::amp
