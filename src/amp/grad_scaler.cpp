// Host side of the loss scaler: the order of calls, and kernel launches. Scale and flags stay on the device.
#include "mezzo/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "amp/scaler_impl.h"
#include "core/enumerators.h"
#include "core/log_line.h"
#include "core/step_recorder.h"
#include "mezzo/ops.h"
#include "mezzo/record_function.h"

namespace mezzo::amp {

namespace {

using Stage = ScalerImpl::Stage;

template <class T> T* state_of(const Tensor& tensor) { return static_cast<T*>(raw(tensor)); }

// The index in the state tensor of the scale before this iteration's checks.
constexpr int previous_scale = offsetof(ScalerState, previous) / sizeof(float);

Tensor state_tensor(const ScaleValues& values, Device device) {
    const ScalerState state{.current = values, .found_inf = 0, .previous = values, .pad = {}};
    NoGrad plain;
    constexpr int count = sizeof state / sizeof(float);
    const std::span<const float> floats(reinterpret_cast<const float*>(&state), count);
    return Tensor::from<float>(floats, {count}).to(device);
}

// Refuses float16 gradients that are not widened to float32: divided by the scale, small ones would become 0.
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

// Advice for errors about mixtures of scaled and unscaled gradients, before and after unscale_().
constexpr char advice_before_unscaling[] =
    "call zero_grad() after the step, or at any time between unscale_() and the next backward()";
constexpr char advice_after_unscaling[] =
    "call unscale_() once, after the last backward() that reaches this optimizer, or zero_grad() and begin "
    "anew";

// Marks the gradients as unscaled. They are divided by the scale when they are first read (deferred
// unscaling).
void leave_unscaled(const optim::OptimizerImpl& optimizer, const optim::GradientList& list,
                    const Tensor& norm) {
    using Scale = optim::DeferredFactor;
    Ref<Scale>(new Scale(list, optimizer.state, norm, optimizer.masters.has_value()))->attach(list.leaves);
    for (TensorImpl* leaf : list.leaves) leaf->grad_meta->gradient.note_unscaled();
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

StepResult::StepResult(Outcome kind, const Tensor& state)
    : kind_(kind), state_(state), version_(state.defined() ? state.version() : 0) {}

bool StepResult::skipped() const {
    if (kind_ != Outcome::on_device) return false;
    check(state_.version() == version_, ErrorKind::state,
          "StepResult: the optimizer has gone on since this step; ask before its next unscale_ or step");
    return optim::read_struct<StepState>(state_).found_inf != 0;
}

bool StepResult::stepped() const {
    return kind_ == Outcome::stepped || (kind_ == Outcome::on_device && !skipped());
}

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

ScaleState ScalerImpl::current_scale() {
    if (StepRecorder* graph = thread_state.recorder)
        graph->follow_scale(scale_id, [own = Ref<ScalerImpl>(this)] { return own->scale_id; });
    return scale_id;
}

void ScalerImpl::renew_scale() {
    scale_id = later_scale(current_scale(), 1);
    if (StepRecorder* graph = thread_state.recorder)
        graph->after_replay([own = Ref<ScalerImpl>(this)] { own->scale_id = later_scale(own->scale_id, 1); });
}

// Without the scale in the gradients, dividing by it would make them vanish.
void ScalerImpl::require_scaled(const char* op) const {
    check(has_scaled, ErrorKind::state, op,
          ": this scaler has not scaled anything yet, so the gradients do not hold its scale; call "
          "scale(loss).backward() before, or load_state_dict()");
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

ScalerImpl::PerOptimizer& ScalerImpl::of(const optim::Optimizer& optimizer) {
    for (PerOptimizer& own : per_optimizer)
        if (own.optimizer == optimizer.id()) return own;
    per_optimizer.push_back({.optimizer = optimizer.id()});
    return per_optimizer.back();
}

bool ScalerImpl::any_checked() const {
    return std::any_of(per_optimizer.begin(), per_optimizer.end(),
                       [](const PerOptimizer& own) { return own.checked; });
}

Tensor GradScaler::scale(const Tensor& outputs) {
    ScalerImpl& s = impl();
    if (!s.options.enabled) return outputs;
    check(outputs.defined() && is_floating(outputs.dtype()), ErrorKind::dtype,
          "GradScaler.scale: the output is undefined or not floating");
    const int index = s.any_checked() ? previous_scale : 0;
    const Tensor factor = s.state_on(outputs.device()).select(0, index);
    if (StepRecorder* graph = thread_state.recorder)
        graph->require([own = Ref<ScalerImpl>(&s), data = raw(s.state)] { return raw(own->state) == data; });
    const Tensor scaled = (is_16bit(outputs.dtype()) ? outputs.to(float32) : outputs) * factor;
    mark_scaled(scaled, scaled_part | s.current_scale());
    s.has_scaled = true;
    return scaled;
}

Tensors GradScaler::scale(const Tensors& outputs) {
    Tensors result;
    for (const Tensor& output : outputs) result.push_back(scale(output));
    return result;
}

GradientFactor ScalerImpl::measure(optim::OptimizerImpl& optimizer, const optim::GradientList& list,
                                   const Tensor& norm, bool scaled, PerOptimizer& progress) {
    if (scaled && (norm.defined() || options.unscale_in_step)) check_gradients_wide(optimizer, list);
    optim::prepare_state(optimizer);
    const bool first = !any_checked();
    writable_state(list.device);
    optim::kernels_of(list.device)
        .statistics(list.refs, {.state = optimizer.step_state(),
                                .norm = norm.defined() ? state_of<float>(norm) : nullptr,
                                .scaler = state_of<ScalerState>(state),
                                .first = first,
                                .scaled = scaled,
                                .again = progress.checked,
                                .args = update_args(options)});
    advanced_with = options;
    progress.checked = true;
    optim::bump_version(optimizer.state);
    if (StepRecorder* graph = thread_state.recorder)
        graph->require([own = Ref<ScalerImpl>(this), args = update_args(options), data = raw(state)] {
            return raw(own->state) == data && update_args(own->options) == args;
        });
    return {.state = optimizer.step_state()};
}

void GradScaler::unscale_(optim::Optimizer& optimizer) {
    ScalerImpl& s = impl();
    if (!s.options.enabled) return;
    const insight::RecordFunction scope("GradScaler.unscale_");
    s.require_scaled("GradScaler.unscale_");
    ScalerImpl::PerOptimizer& progress = s.of(optimizer);
    check(progress.stage != Stage::unscaled, ErrorKind::state,
          "GradScaler.unscale_: it has already been called on this ", optimizer.type_name(),
          " since the last update()");
    check(progress.stage != Stage::stepped, ErrorKind::state, "GradScaler.unscale_: it is called on this ",
          optimizer.type_name(), " after step()");
    optim::OptimizerImpl& own = optimizer.impl();
    optim::refuse_scale_state("GradScaler.unscale_", own, both_parts | s.current_scale(),
                              advice_before_unscaling);
    const optim::GradientList list =
        optim::gradient_list("GradScaler", own.params(), optim::PendingFactors::apply);
    if (list.with_gradient != 0) {
        const Tensor norm = empty({}, {.device = list.device});
        s.measure(own, list, norm, true, progress);
        leave_unscaled(own, list, norm);
    }
    progress.stage = Stage::unscaled;
}

ScalerImpl::PerOptimizer& ScalerImpl::ready_to_step(const optim::Optimizer& optimizer) {
    require_scaled("GradScaler.step");
    PerOptimizer& progress = of(optimizer);
    check(progress.stage != Stage::stepped, ErrorKind::state,
          "GradScaler.step: it has already been called on this ", optimizer.type_name(),
          " since the last update()");
    return progress;
}

StepResult GradScaler::step(optim::Optimizer& optimizer) {
    using Outcome = StepResult::Outcome;
    ScalerImpl& s = impl();
    if (!s.options.enabled) {
        optimizer.step();
        return StepResult(Outcome::stepped, {});
    }
    const insight::RecordFunction scope("GradScaler.step");
    ScalerImpl::PerOptimizer& progress = s.ready_to_step(optimizer);
    optim::OptimizerImpl& own = optimizer.impl();
    const bool unscaled = progress.stage == Stage::unscaled;
    optim::refuse_scale_state("GradScaler.step", own,
                              (unscaled ? scaled_part : both_parts) | s.current_scale(),
                              unscaled ? advice_after_unscaling : advice_before_unscaling);
    // Planned first, so that a step that runs out of memory leaves the gradients scaled and can be tried
    // again.
    const optim::GradientList plan =
        optim::plan_update(own, true, unscaled ? optim::PendingFactors::keep : optim::PendingFactors::apply);
    // After unscale_() what is still pending, or 1.
    GradientFactor factor = plan.pending_factor ? plan.pending_factor->scale() : GradientFactor{};
    if (!unscaled && plan.with_gradient != 0)
        factor = s.measure(own, plan, {}, true, progress);
    else if (unscaled && !plan.pending_factor && progress.checked && s.options.recheck)
        s.measure(own, plan, {}, false, progress);
    if (!progress.checked && !s.options.allow_no_gradients) fail_unchecked(own);
    progress.stage = Stage::stepped;
    if (!progress.checked || !optim::run_update(own, plan, true, factor))
        return StepResult(Outcome::nothing, {});
    if (!unscaled && s.options.unscale_in_step) leave_unscaled(own, plan, {});
    return StepResult(Outcome::on_device, own.state);
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

void GradScaler::update() {
    ScalerImpl& s = impl();
    if (!s.options.enabled) return;
    const bool checked = s.any_checked();
    check(checked || s.options.allow_no_gradients, ErrorKind::state,
          "GradScaler.update: no inf checks were recorded before it; call step() or unscale_() first");
    if (checked) {
        if (s.options.dynamic && s.options.at_floor == AtFloor::fail) s.check_floor();
        if (s.state.device() == cpu_device)
            static_cast<void>(s.snapshot());  // checks for the floor; on other devices it would wait
        // `statistics` has already computed the new state; it is recomputed if the options have changed
        // since.
        if (!s.advanced_with || !(update_args(*s.advanced_with) == update_args(s.options))) {
            s.writable_state(s.state.device());
            optim::kernels_of(s.state.device())
                .update_scale(state_of<ScalerState>(s.state), update_args(s.options));
        }
        if (StepRecorder* graph = thread_state.recorder) {
            const Ref<ScalerImpl> own(&s);
            graph->require([own] { return own->per_optimizer.empty(); });
            graph->after_replay([own] { optim::bump_version(own->state); });
        }
    }
    s.per_optimizer.clear();
    if (checked && s.options.dynamic) s.renew_scale();
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
