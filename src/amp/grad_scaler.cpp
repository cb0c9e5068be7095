// The loss scaler's host side: the order of calls, and what is launched. Scale and flags stay on the device.
#include "mezzo/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/capture.h"
#include "mezzo/ops.h"
#include "optim/optimizer.h"

namespace mezzo::amp {

namespace {

constexpr int state_floats = sizeof(ScalerState) / sizeof(float);
template <class T> T* state_of(const Tensor& tensor) { return static_cast<T*>(raw(tensor)); }

Tensor state_tensor(float scale, float growth_tracker, float hysteresis_left, Device device) {
    ScalerState values{};
    values.scale = scale;
    values.growth_tracker = growth_tracker;
    values.hysteresis_left = hysteresis_left;
    NoGrad plain;
    const std::span<const float> floats(reinterpret_cast<const float*>(&values), state_floats);
    return Tensor::from<float>(floats, {state_floats}).to(device);
}

void check_factors(double growth, double backoff, double interval) {
    check(std::isfinite(growth) && growth > 1, ErrorKind::value, "GradScaler: growth_factor is ", growth,
          "; it must be > 1");
    check(backoff > 0 && backoff < 1, ErrorKind::value, "GradScaler: backoff_factor is ", backoff,
          "; it must be in (0, 1)");
    check(interval >= 1 && interval < 16777216, ErrorKind::value, "GradScaler: growth_interval is ", interval,
          "; it must be in [1, 2^24)");
}

void check_scale(const char* what, double scale) {
    check(scale > 0 && std::isfinite(float(scale)), ErrorKind::value, "GradScaler: ", what, " is ", scale,
          "; it must be positive and finite in float32");
}

// In-place unscaling would round, flush and overflow in float16.
void check_gradients_wide(const optim::OptimizerImpl& optimizer, const optim::GradientList& list) {
    std::string names;
    std::size_t count = 0;
    for (std::size_t i = 0; i < list.refs.size(); ++i) {
        if (list.refs[i].grad_dtype != float16) continue;
        if (++count <= 5) names += (names.empty() ? "" : ", ") + optimizer.describe(list.indices[i]);
    }
    check(count == 0, ErrorKind::dtype, "GradScaler: attempting to unscale float16 gradients of ",
          optimizer.type, ": ", names, count > 5 ? ", … (" : " (", count, " of ", optimizer.slots.size(),
          " parameters); keep the parameters in float32 and use Autocast, or call use_master_weights()");
}

StepKernels::ScalerArgs update_args(const GradScalerOptions& options) {
    return {.growth_factor = float(options.growth_factor),
            .backoff_factor = float(options.backoff_factor),
            .growth_interval = float(options.growth_interval),
            .min_scale = float(options.min_scale),
            .max_scale = float(options.max_scale),
            .hysteresis = float(options.hysteresis),
            .refill_every_clean_step = options.refill_every_clean_step,
            .dynamic = options.dynamic};
}

[[noreturn]] void fail_unchecked(const optim::OptimizerImpl& optimizer) {
    std::size_t with_gradient = 0, requiring = 0;
    for (const optim::Slot& slot : optimizer.slots) {
        with_gradient += slot.param.grad().defined();
        requiring += slot.param.requires_grad();
    }
    fail(ErrorKind::state, "GradScaler.step: no inf checks were recorded for ", optimizer.type, ": of ",
         optimizer.slots.size(), " parameters ", with_gradient, " have a gradient and ", requiring,
         " require one; did backward() reach them?");
}

}  // namespace

StepResult::StepResult(Kind kind, const Tensor& state)
    : kind_(kind), state_(state), version_(state.defined() ? state.version() : 0) {}

bool StepResult::skipped() const {
    if (kind_ != Kind::on_device) return false;
    check(state_.version() == version_, ErrorKind::state,
          "StepResult: the optimizer has gone on since this step; ask before its next unscale_ or step");
    return state_.to_vector<float>()[offsetof(StepState, found_inf) / sizeof(float)] != 0;
}

bool StepResult::stepped() const {
    return kind_ == Kind::stepped || (kind_ == Kind::on_device && !skipped());
}

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(float(options.init_scale)), hysteresis_left_(float(options.hysteresis)) {
    check_scale("init_scale", options.init_scale);
    check_factors(options.growth_factor, options.backoff_factor, double(options.growth_interval));
    check(options.min_scale >= 0 && options.min_scale <= options.max_scale, ErrorKind::value,
          "GradScaler: min_scale is ", options.min_scale, " and max_scale ", options.max_scale,
          "; 0 <= min_scale <= max_scale is needed");
    check(options.hysteresis >= 1 && options.hysteresis < 16777216, ErrorKind::value,
          "GradScaler: hysteresis is ", options.hysteresis, "; it must be in [1, 2^24)");
    check(!options.dynamic || options.min_scale <= options.init_scale, ErrorKind::value,
          "GradScaler: init_scale ", options.init_scale, " is below min_scale ", options.min_scale);
    if (options.dynamic) scale_ = float(std::min(options.init_scale, options.max_scale));
}

// The device state, made at the first use. It may follow the model to another device between iterations.
Tensor& GradScaler::state_on(Device device) {
    if (!state_.defined()) {
        state_ = state_tensor(scale_, growth_tracker_, hysteresis_left_, device);
    } else if (!(state_.device() == device)) {
        check(records_.empty(), ErrorKind::device, "GradScaler: it works on ", state_.device(),
              " in this iteration, got ", device, "; use one scaler per device");
        NoGrad plain;
        state_ = state_.to(device);
    }
    return state_;
}

void GradScaler::set_state(float scale, float growth_tracker, float hysteresis_left) {
    scale_ = scale;
    growth_tracker_ = growth_tracker;
    hysteresis_left_ = hysteresis_left;
    if (state_.defined()) state_.copy_(state_tensor(scale, growth_tracker, hysteresis_left, state_.device()));
}

GradScaler::Record& GradScaler::record_of(const optim::Optimizer& optimizer) {
    for (Record& record : records_)
        if (record.optimizer == optimizer.id()) return record;
    records_.push_back({.optimizer = optimizer.id()});
    return records_.back();
}

bool GradScaler::any_checked() const {
    return std::any_of(records_.begin(), records_.end(), [](const Record& record) { return record.checked; });
}

Tensor GradScaler::scale(const Tensor& outputs) {
    if (!options_.enabled) return outputs;
    check(outputs.defined() && is_floating(outputs.dtype()), ErrorKind::dtype,
          "GradScaler.scale: the output is undefined or not floating");
    for (Record& record : records_) {
        if (record.stage != Stage::unscaled || !record.versions.empty()) continue;
        for (const Tensor& gradient : record.gradients) record.versions.push_back(gradient.version());
    }
    const Tensor factor = state_on(outputs.device()).select(0, 0);
    return (is_16bit(outputs.dtype()) ? outputs.to(float32) : outputs) * factor;
}

Tensors GradScaler::scale(const Tensors& outputs) {
    Tensors result;
    for (const Tensor& output : outputs) result.push_back(scale(output));
    return result;
}

// Checks all gradients, and multiplies them by 1/scale now (write_back) or leaves that to the update.
void GradScaler::unscale(optim::OptimizerImpl& impl, const optim::GradientList& list, bool write_back,
                         Record& record) {
    if (list.with_gradient == 0) return;
    if (write_back) check_gradients_wide(impl, list);
    optim::prepare_state(impl);
    ScalerState* const scaler = state_of<ScalerState>(state_on(list.device));
    const StepKernels& kernels = optim::kernels_of(list.device);
    kernels.begin_step(impl.step_state(), scaler, !write_back);
    kernels.check_finite(list.refs, scaler, write_back, impl.step_state(), nullptr);
    kernels.merge_found_inf(scaler, impl.step_state());
    record.checked = true;
    optim::bump_version(impl.state);
    if (write_back) {
        optim::bump_versions(list.gradients);
        record.gradients = list.gradients;
    }
}

void GradScaler::unscale_(optim::Optimizer& optimizer) {
    if (!options_.enabled) return;
    Record& record = record_of(optimizer);
    check(record.stage != Stage::unscaled, ErrorKind::state,
          "GradScaler.unscale_: it has already been called on this ", optimizer.type_name(),
          " since the last update()");
    check(record.stage != Stage::stepped, ErrorKind::state, "GradScaler.unscale_: it is called on this ",
          optimizer.type_name(), " after step()");
    optim::OptimizerImpl& impl = optimizer.impl();
    optim::widen_gradients(impl);
    unscale(impl, optim::gradient_list("GradScaler", impl.params()), true, record);
    record.stage = Stage::unscaled;
}

void GradScaler::check_not_mixed(const optim::Optimizer& optimizer, const Record& record) const {
    if (record.versions.empty()) return;
    std::size_t at = 0;
    for (const Tensor& parameter : optimizer.parameters()) {
        const Tensor gradient = parameter.grad();
        if (!gradient.defined() || gradient.numel() == 0) continue;
        const bool same = at < record.gradients.size() && gradient.impl() == record.gradients[at].impl() &&
                          gradient.version() == record.versions[at];
        check(same, ErrorKind::state, "GradScaler.step: gradients of this ", optimizer.type_name(),
              " changed after unscale_() and a further scale(): scaled ones were added to unscaled ones; "
              "call unscale_() "
              "once, after the last backward()");
        ++at;
    }
}

StepResult GradScaler::step(optim::Optimizer& optimizer) {
    using Kind = StepResult::Kind;
    if (!options_.enabled) {
        optimizer.step();
        return StepResult(Kind::stepped, {});
    }
    Record& record = record_of(optimizer);
    optim::OptimizerImpl& impl = optimizer.impl();
    check(record.stage != Stage::stepped, ErrorKind::state,
          "GradScaler.step: it has already been called on this ", optimizer.type_name(),
          " since the last update()");
    const bool unscaled = record.stage == Stage::unscaled;
    if (unscaled) check_not_mixed(optimizer, record);
    if (!unscaled && options_.unscale_in_step) optim::widen_gradients(impl);
    // First, so that a step that runs out of memory leaves the gradients scaled, and can be tried again.
    const optim::StepPlan plan = optim::plan_update(impl, true);
    if (!unscaled) {
        unscale(impl, plan.list, options_.unscale_in_step, record);
    } else if (options_.recheck && record.checked) {
        const StepKernels& kernels = optim::kernels_of(impl.device());
        kernels.check_finite(plan.list.refs, nullptr, false, impl.step_state(), nullptr);
        kernels.merge_found_inf(state_of<ScalerState>(state_), impl.step_state());
    }
    if (!record.checked && !options_.allow_no_gradients) fail_unchecked(impl);
    record.stage = Stage::stepped;
    record.gradients.clear();
    record.versions.clear();
    if (!record.checked || !optim::run_update(impl, plan, true)) return StepResult(Kind::nothing, {});
    return StepResult(Kind::on_device, impl.state);
}

void GradScaler::check_floor() const {
    const std::vector<float> values = state_.to_vector<float>();
    const auto at = [&](std::size_t offset) { return values[offset / sizeof(float)]; };
    const float scale = at(offsetof(ScalerState, scale));
    const bool backs_off =
        at(offsetof(ScalerState, found_inf)) != 0 && at(offsetof(ScalerState, hysteresis_left)) <= 1;
    check(!backs_off || scale > float(options_.min_scale), ErrorKind::value,
          "GradScaler.update: overflow at scale ", scale,
          ", which is min_scale already; the loss itself, or the model in 16 bit, has left the range");
}

void GradScaler::update() {
    if (!options_.enabled) return;
    const bool checked = any_checked();
    check(checked || options_.allow_no_gradients, ErrorKind::state,
          "GradScaler.update: no inf checks were recorded before it; call step() or unscale_() first");
    if (checked) {
        if (options_.dynamic && options_.at_floor == AtFloor::fail) check_floor();
        const StepKernels::ScalerArgs args = update_args(options_);
        optim::kernels_of(state_.device()).update_scale(state_of<ScalerState>(state_), args);
        if (StepGraph* graph = StepGraph::recording()) {
            graph->require([this, args, data = raw(state_)] {
                return raw(state_) == data && records_.empty() && update_args(options_) == args;
            });
            graph->after_replay([this] { optim::bump_version(state_); });
        }
        optim::bump_version(state_);
    }
    records_.clear();
}

void GradScaler::update(double new_scale) {
    if (!options_.enabled) return;
    check_scale("the new scale", new_scale);
    scale_ = float(new_scale);
    if (state_.defined()) {
        NoGrad plain;
        state_.slice(0, 0, 1).fill_(new_scale);
        state_.slice(0, 3, 4).zero_();  // found_inf
    }
    records_.clear();
}

void GradScaler::update(const Tensor& new_scale) {
    if (!options_.enabled) return;
    check(new_scale.defined() && new_scale.numel() == 1 && new_scale.dtype() == float32 &&
              !new_scale.requires_grad(),
          ErrorKind::value,
          "GradScaler.update: the new scale must be one float32 number that does not require grad");
    NoGrad plain;
    const Tensor& state = state_on(new_scale.device());
    state.slice(0, 0, 1).copy_(new_scale.reshape({1}));
    state.slice(0, 3, 4).zero_();
    records_.clear();
}

double GradScaler::get_scale() const {
    if (!options_.enabled) return 1;
    return state_.defined() ? double(state_.to_vector<float>()[0]) : double(scale_);
}

std::int64_t GradScaler::get_growth_tracker() const {
    if (!options_.enabled) return 0;
    return std::int64_t(state_.defined() ? state_.to_vector<float>()[1] : growth_tracker_);
}

void GradScaler::set_growth_factor(double factor) {
    check_factors(factor, options_.backoff_factor, double(options_.growth_interval));
    options_.growth_factor = factor;
}
void GradScaler::set_backoff_factor(double factor) {
    check_factors(options_.growth_factor, factor, double(options_.growth_interval));
    options_.backoff_factor = factor;
}
void GradScaler::set_growth_interval(std::int64_t interval) {
    check_factors(options_.growth_factor, options_.backoff_factor, double(interval));
    options_.growth_interval = interval;
}

bool GradScaler::found_inf() const {
    if (!options_.enabled || !state_.defined()) return false;
    return state_.to_vector<float>()[offsetof(ScalerState, found_inf) / sizeof(float)] != 0;
}

std::vector<std::string> GradScaler::overflowed_parameters(const optim::Optimizer& optimizer) const {
    const optim::OptimizerImpl& impl = optimizer.impl();
    const optim::GradientList list = optim::gradient_list("GradScaler", impl.params());
    if (list.refs.empty()) return {};
    const Tensor flags = zeros({std::int64_t(list.refs.size())}, {.device = list.device});
    const Tensor state = zeros({std::int64_t(sizeof(StepState) / sizeof(float))}, {.device = list.device});
    optim::kernels_of(list.device)
        .check_finite(list.refs, nullptr, false, state_of<StepState>(state), state_of<float>(flags));
    std::vector<std::string> names;
    const std::vector<float> values = flags.to_vector<float>();
    for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] != 0) names.push_back(impl.describe(list.indices[i]));
    return names;
}

}  // namespace mezzo::amp
