#include "ops/gemm/fp8_weight.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "autograd/autocast_state.h"
#include "autograd/op_observer.h"
#include "core/memory/memory_hook.h"
#include "core/step_recorder.h"
#include "core/tensor_impl.h"
#include "ops/common.h"

namespace mezzo {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

Ref<Fp8Weight> Fp8Weight::existing(const Tensor& weight) {
    return Ref<Fp8Weight>(static_cast<Fp8Weight*>(LeafState::of(weight).get()));
}

Ref<Fp8Weight> Fp8Weight::of(const Tensor& weight) {
    if (weight->grad_meta == nullptr || !weight.is_leaf()) return {};
    const std::scoped_lock lock(mutex);
    Ref<LeafState>& state = weight->grad_meta->state;
    if (!state) state = Ref<LeafState>(new Fp8Weight);
    return Ref<Fp8Weight>(static_cast<Fp8Weight*>(state.get()));
}

// The condition of a captured step that reads or writes the history, or that has found none for its device:
// it lies where it did. The condition holds it.
void Fp8Weight::require_same_history() {
    if (thread_state.recorder == nullptr) return;
    thread_state.recorder->require([self = Ref<Fp8Weight>(this), history = history_] {
        const Tensor now = self->history();
        return now.defined() == history.defined() && (!now.defined() || raw(now) == raw(history));
    });
}

QuantizedBoth Fp8Weight::codes(const Fp8WeightKey& key, Wanted wanted, int steps,
                               const std::function<Fp8Codes()>& make) {
    const std::scoped_lock lock(mutex_);
    if (!(key == key_)) {
        if (key.version < key_.version) {  // a backward after the weight has changed
            const Fp8Codes made = make();
            if (steps > 0) record(Fp8Operand::weight, made.largest, steps);
            return made.both;
        }
        drop_codes();
        key_ = key;
    }
    QuantizedBoth& both = codes_.both;
    const bool matrix = both.matrix.codes.defined(), transposed = both.transposed.codes.defined();
    if ((!matrix && wanted != Wanted::transposed) || (!transposed && wanted != Wanted::matrix)) {
        const Fp8Codes made = make();
        if (!matrix) both.matrix = made.both.matrix;
        if (!transposed) both.transposed = made.both.transposed;
        codes_.largest = made.largest;
    }
    if (steps > 0 && !recorded_) {
        record(Fp8Operand::weight, codes_.largest, steps);
        recorded_ = true;
    }
    return both;
}

void Fp8Weight::drop_codes() {
    key_ = {};
    codes_ = {};
    recorded_ = false;
}

void Fp8Weight::prepare(Device device, int steps) {
    const NoGrad no_grad;
    const NoAutocast plain;
    const std::scoped_lock lock(mutex_);
    if (history_.defined() && history_.device() == device && history_.size(1) == fp8_steps + steps) return;
    const OutsideStep memory;
    const std::int64_t columns = fp8_steps + steps;
    Tensor made = zeros({fp8_operands, columns}, {.device = device});
    if (history_.defined()) {
        const std::int64_t common = std::min(columns, history_.size(1));
        made.slice(1, 0, common).copy_(history_.slice(1, 0, common));
        made.select(1, fp8_largest).copy_(max(made.slice(1, fp8_steps, columns), 1));
    }
    history_ = made;
    optimizer_ = {};
}

Tensor Fp8Weight::largest(Fp8Operand operand, const Tensor& current) {
    const NoGrad no_grad;
    const NoAutocast plain;
    const std::scoped_lock lock(mutex_);
    require_same_history();
    if (!history_.defined() || !(history_.device() == current.device())) return current;
    const Tensor number = history_.select(0, std::int64_t(operand)).slice(0, fp8_largest, fp8_largest + 1);
    const Tensor largest = number.reshape(current.shape());
    return where(largest > 0.0, largest, current);
}

void Fp8Weight::record(Fp8Operand operand, const Tensor& largest, int steps) {
    const NoGrad no_grad;
    const NoAutocast plain;
    const std::scoped_lock lock(mutex_);
    prepare(largest.device(), steps);
    require_same_history();
    const Tensor number = history_.select(0, std::int64_t(operand)).slice(0, fp8_running, fp8_running + 1);
    const Tensor running = number.reshape(largest.shape());
    running.copy_(maximum(running, largest));
}

Tensor Fp8Weight::history() const {
    const std::scoped_lock lock(mutex_);
    return history_;
}

void Fp8Weight::set_history(const Tensor& history) {
    const std::scoped_lock lock(mutex_);
    drop_codes();
    history_ = history;
    optimizer_ = {};
}

void Fp8Weight::moved(Device device) {
    const NoGrad plain;
    const std::scoped_lock lock(mutex_);
    drop_codes();
    if (!history_.defined() || history_.device() == device) return;
    history_ = history_.to(device);
    optimizer_ = {};
}

Ref<LeafState> Fp8Weight::copy() const {
    const NoGrad plain;
    const std::scoped_lock lock(mutex_);
    if (!history_.defined()) return {};
    Ref<Fp8Weight> made(new Fp8Weight);
    made->history_ = history_.clone();
    return Ref<LeafState>(made.get());
}

// Puts the histories of an optimizer's parameters behind each other, unless they are there already.
Fp8Weight::OfOptimizer Fp8Weight::gather(const std::vector<Fp8Weight*>& states) {
    const auto has_history = [](const Fp8Weight* state) {
        return state != nullptr && state->history_.defined();
    };
    const Fp8Weight& first = **std::find_if(states.begin(), states.end(), has_history);
    const std::int64_t count = std::int64_t(states.size());
    std::int64_t columns = 0;
    bool placed = first.optimizer_.all.defined() && first.optimizer_.all.size(0) == count;
    for (std::int64_t i = 0; i < count; ++i) {
        const Fp8Weight* const state = states[std::size_t(i)];
        if (!has_history(state)) continue;
        columns = std::max(columns, state->history_.size(1));
        placed = placed && state->optimizer_.all.defined() &&
                 state->optimizer_.all.impl() == first.optimizer_.all.impl() &&
                 raw(state->history_) == raw(first.optimizer_.all.select(0, i));
    }
    if (placed) return first.optimizer_;
    const OutsideStep memory;
    const Device device = first.history_.device();
    const OfOptimizer made{.all = zeros({count, fp8_operands, columns}, {.device = device}),
                           .window = zeros({count, 1, columns - fp8_steps}, {.device = device})};
    for (std::int64_t i = 0; i < count; ++i) {
        Fp8Weight* const state = states[std::size_t(i)];
        if (!has_history(state)) continue;
        const std::int64_t own = state->history_.size(1);
        const Tensor place = made.all.select(0, i).slice(1, 0, own);
        place.copy_(state->history_);
        made.window.select(0, i).slice(1, 0, own - fp8_steps).fill_(1);
        state->history_ = place;
        state->optimizer_ = made;
    }
    return made;
}

// Makes the histories that this rank lacks and another has, all as long as the longest on any rank.
void Fp8Weight::prepare_as_others(const Tensors& parameters,
                                  const std::function<void(const Tensor&)>& reduce_max) {
    std::vector<float> steps;
    for (const Tensor& parameter : parameters) {
        const Ref<Fp8Weight> state = existing(parameter);
        const Tensor own = state ? state->history() : Tensor();
        steps.push_back(own.defined() ? float(own.size(1) - fp8_steps) : 0);
    }
    const Tensor longest = Tensor::from(steps, {std::int64_t(steps.size())}).to(parameters.front().device());
    reduce_max(longest);
    const std::vector<float> of_all = longest.to_vector<float>();
    for (std::size_t i = 0; i < steps.size(); ++i)
        if (steps[i] < of_all[i]) of(parameters[i])->prepare(parameters[i].device(), int(of_all[i]));
}

void Fp8Weight::end_step(const Tensors& parameters, ReducedStates ranks,
                         const std::function<void(const Tensor&)>& reduce_max) {
    const NoGrad no_grad;
    const NoAutocast plain;
    const Observers::Unwatched inside;  // as other work of a step
    // A captured step has the histories of an earlier one.
    const bool differ = ranks == ReducedStates::differ && thread_state.recorder == nullptr;
    if (differ) prepare_as_others(parameters, reduce_max);
    std::vector<Fp8Weight*> own;
    std::vector<std::unique_lock<std::recursive_mutex>> locks;
    bool any = false;
    for (const Tensor& parameter : parameters) {
        own.push_back(existing(parameter).get());
        if (own.back() == nullptr) continue;
        locks.emplace_back(own.back()->mutex_);
        own.back()->drop_codes();
        any = any || own.back()->history_.defined();
    }
    if (!any) return;
    const auto [all, window] = gather(own);
    const std::int64_t columns = all.size(2);
    const Tensor running = all.slice(2, fp8_running, fp8_running + 1);
    Tensor last = all.slice(2, fp8_steps, columns);
    // NaN as infinity, which every reduction finds.
    const Tensor largest = where(isfinite(running), running, infinity).contiguous();
    if (ranks != ReducedStates::none) reduce_max(largest);
    if (differ) {
        last = last.clone();
        reduce_max(last);
    }
    const Tensor moved = cat({largest, last.slice(2, 0, columns - fp8_steps - 1)}, 2);
    const Tensor kept = where((largest > 0.0) & isfinite(largest), moved, last) * window;
    all.copy_(cat({zeros_like(running), max(kept, 2, keep_dims()), kept}, 2));
}

[[maybe_unused]] static const bool ends_steps = (LeafState::step_ended = &Fp8Weight::end_step, true);

}  // namespace mezzo
