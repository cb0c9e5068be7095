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

// Where in its tensor the state before this iteration's checks begins.
constexpr int previous_state = offsetof(ScalerState, previous_scale) / sizeof(float);

Tensor state_tensor(float scale, float growth_tracker, float hysteresis_left, Device device) {
    ScalerState values{};
    values.scale = scale;
    values.growth_tracker = growth_tracker;
    values.hysteresis_left = hysteresis_left;
    values.previous_scale = scale;
    values.previous_growth_tracker = growth_tracker;
    values.previous_hysteresis_left = hysteresis_left;
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
        const bool widened = optim::has_master(optimizer, optimizer.slots[list.indices[i]]);
        if (list.refs[i].grad_dtype != float16 || widened) continue;
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

// The same for writing to. A graph of this iteration that has not run backward yet reads the scale it was
// made with: it keeps the old state.
Tensor GradScaler::writable_state(Device device) {
    Tensor& state = state_on(device);
    if (state->storage->refs.load() > 1) {
        NoGrad plain;
        state = state.clone();
    }
    optim::bump_version(state);
    return state;
}

void GradScaler::set_state(float scale, float growth_tracker, float hysteresis_left) {
    scale_ = scale;
    growth_tracker_ = growth_tracker;
    hysteresis_left_ = hysteresis_left;
    if (!state_.defined()) return;
    state_.copy_(state_tensor(scale, growth_tracker, hysteresis_left, state_.device()));
    advanced_with_.reset();
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
    remember_gradients();
    const int at = any_checked() ? previous_state : 0;
    const Tensor factor = state_on(outputs.device()).select(0, at);
    if (StepGraph* graph = StepGraph::recording())
        graph->require([this, data = raw(state_)] { return raw(state_) == data; });
    return (is_16bit(outputs.dtype()) ? outputs.to(float32) : outputs) * factor;
}

void GradScaler::remember_gradients() {
    for (Record& record : records_) {
        if (record.stage != Stage::unscaled || !record.versions.empty()) continue;
        for (const Tensor& parameter : record.parameters) {
            const Tensor gradient = parameter.grad();
            if (!gradient.defined()) continue;
            record.gradients.push_back(gradient);
            record.versions.push_back(gradient.version());
        }
    }
}

Tensors GradScaler::scale(const Tensors& outputs) {
    Tensors result;
    for (const Tensor& output : outputs) result.push_back(scale(output));
    return result;
}

// Statistics over all gradients, the scaler's state after update() among them. scaled: the gradients are to
// be divided by the scale.
void GradScaler::measure(optim::OptimizerImpl& impl, const optim::GradientList& list, const Tensor& norm,
                         bool scaled, Record& record) {
    optim::prepare_state(impl);
    const bool first = !any_checked();
    const Tensor state = writable_state(list.device);
    optim::kernels_of(list.device)
        .statistics(list.refs, {.state = impl.step_state(),
                                .norm = norm.defined() ? state_of<float>(norm) : nullptr,
                                .scaler = state_of<ScalerState>(state),
                                .first = first,
                                .scaled = scaled,
                                .again = record.checked,
                                .args = update_args(options_)});
    advanced_with_ = options_;
    record.checked = true;
    optim::bump_version(impl.state);
    if (StepGraph* graph = StepGraph::recording())
        graph->require([this, args = update_args(options_), data = raw(state_)] {
            return raw(state_) == data && update_args(options_) == args;
        });
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
    const optim::GradientList list =
        optim::gradient_list("GradScaler", impl.params(), optim::Waiting::settle);
    if (list.with_gradient != 0) {
        check_gradients_wide(impl, list);
        const Tensor norm = empty({}, {.device = list.device});
        measure(impl, list, norm, true, record);
        optim::defer(Ref<optim::Deferred>(new optim::Deferred(impl.state, norm, impl.masters)), list);
        for (TensorImpl* leaf : list.leaves) record.parameters.push_back(Tensor(leaf));
    }
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
    // First, so that a step that runs out of memory leaves the gradients scaled, and can be tried again.
    const optim::GradientList plan =
        optim::plan_update(impl, true, unscaled ? optim::Waiting::keep : optim::Waiting::settle);
    GradientScale scale;
    if (unscaled) {
        if (plan.deferred) {
            scale = plan.deferred->scale();
        } else if (options_.recheck && record.checked) {
            measure(impl, plan, {}, false, record);
        }
    } else if (plan.with_gradient != 0) {
        if (options_.unscale_in_step) check_gradients_wide(impl, plan);
        measure(impl, plan, {}, true, record);
        scale.state = impl.step_state();
    }
    if (!record.checked && !options_.allow_no_gradients) fail_unchecked(impl);
    record.stage = Stage::stepped;
    record.parameters.clear();
    record.gradients.clear();
    record.versions.clear();
    if (!record.checked || !optim::run_update(impl, plan, true, scale)) return StepResult(Kind::nothing, {});
    if (!unscaled && options_.unscale_in_step)
        optim::defer(Ref<optim::Deferred>(new optim::Deferred(impl.state, {}, impl.masters)), plan);
    return StepResult(Kind::on_device, impl.state);
}

void GradScaler::check_floor() const {
    const std::vector<float> state = read_state();
    const float scale = state[0];
    const bool backs_off = state[3] != 0 && state[2] <= 1;
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
        // The device has computed the new state already, unless the rules have changed since.
        if (!advanced_with_ || !(update_args(*advanced_with_) == update_args(options_)))
            optim::kernels_of(state_.device())
                .update_scale(state_of<ScalerState>(writable_state(state_.device())), update_args(options_));
        if (StepGraph* graph = StepGraph::recording()) {
            graph->require([this] { return records_.empty(); });
            graph->after_replay([this] { optim::bump_version(state_); });
        }
    }
    records_.clear();
}

// The growth tracker stays as it was before this iteration's checks.
void GradScaler::set_scale(const Tensor& scale) {
    NoGrad plain;
    const bool checked = any_checked();
    const Tensor state = writable_state(scale.device());
    if (checked) {
        state.slice(0, 1, 3).copy_(state.slice(0, previous_state + 1, previous_state + 3));
    }
    state.slice(0, 0, 1).copy_(scale);
    records_.clear();
}

void GradScaler::update(double new_scale) {
    if (!options_.enabled) return;
    check_scale("the new scale", new_scale);
    scale_ = float(new_scale);
    if (state_.defined()) {
        set_scale(full({1}, new_scale, {.device = state_.device()}));
    } else {
        records_.clear();
    }
}

void GradScaler::update(const Tensor& new_scale) {
    if (!options_.enabled) return;
    check(new_scale.defined() && new_scale.numel() == 1 && new_scale.dtype() == float32 &&
              !new_scale.requires_grad(),
          ErrorKind::value,
          "GradScaler.update: the new scale must be one float32 number that does not require grad");
    state_on(new_scale.device());
    set_scale(new_scale.reshape({1}));
}

// Scale, growth tracker, hysteresis left and found_inf, as they are until update(). Waits for the device.
std::vector<float> GradScaler::read_state() const {
    if (!state_.defined()) return {scale_, growth_tracker_, hysteresis_left_, 0};
    const std::vector<float> values = state_.to_vector<float>();
    const std::size_t at = any_checked() ? previous_state : 0;
    return {values[at], values[at + 1], values[at + 2], any_checked() ? values[3] : 0};
}

double GradScaler::get_scale() const {
    if (!options_.enabled) return 1;
    return double(read_state()[0]);
}

std::int64_t GradScaler::get_growth_tracker() const {
    if (!options_.enabled) return 0;
    return std::int64_t(read_state()[1]);
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

bool GradScaler::found_inf() const { return options_.enabled && any_checked() && read_state()[3] != 0; }

std::vector<std::string> GradScaler::overflowed_parameters(const optim::Optimizer& optimizer) const {
    const optim::OptimizerImpl& impl = optimizer.impl();
    const optim::GradientList list =
        optim::gradient_list("GradScaler", impl.params(), optim::Waiting::settle);
    if (list.refs.empty()) return {};
    const Tensor flags = empty({std::int64_t(list.refs.size())}, {.device = list.device});
    optim::kernels_of(list.device).flag_nonfinite(list.refs, state_of<float>(flags));
    std::vector<std::string> names;
    const std::vector<float> values = flags.to_vector<float>();
    for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] != 0) names.push_back(impl.describe(list.indices[i]));
    return names;
}

}  // namespace mezzo::amp
