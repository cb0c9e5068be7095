// Host side of the loss scaler: the order of calls, and kernel launches. Scale and flags stay on the device.
#include "mezzo/grad_scaler.h"

#include <algorithm>

#include "amp/scaler_impl.h"
#include "core/step_recorder.h"
#include "mezzo/ops.h"
#include "mezzo/record_function.h"

namespace mezzo::amp {

namespace {

using Stage = ScalerImpl::Stage;

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

}  // namespace mezzo::amp
