// Loop over the steps of a recurrent layer: each step is a matrix product and one pass over the elements.
// Backends pass their products, a function object multiply(a, b, beta, y), and the two passes. All steps have
// the same b.
#pragma once

#include <algorithm>

#include "core/tensor_impl.h"
#include "kernels/matmul.h"
#include "kernels/recurrent.h"

namespace mezzo::kernels {

// Arguments of one pass over [batch, hidden]. Pointers are to contiguous rows, or null if there are none.
// Elements are of `dtype`, those marked wide of `wide`.
struct RecurrentStep {
    RecurrentCell cell;
    Dtype dtype, wide;
    std::int64_t batch, hidden, time;  // which step it is
    const std::int64_t* lengths;       // sequences that end before `time` keep their state
    const void *gates, *bias;
    const void* product;         // wide
    const void* state;           // before the step; null: zeros
    const void* cell_state;      // wide, likewise
    void *new_state, *saved;     // saved gates may be null
    void *new_cell, *last_cell;  // wide; the second may be null, for a copy
};
struct RecurrentGradStep {
    RecurrentCell cell;
    Dtype dtype, wide;
    std::int64_t batch, hidden, time;
    const std::int64_t* lengths;
    int gate_count;
    const void* g;           // of the state after the step, from outside of the layer; may be null
    const void* carried_in;  // wide: of the same, from the steps after it; null: zeros
    void* carried;           // wide: of the state before, without the product's part; null: not wanted
    void* cell_grad;         // wide: of the cell state after the step, replaced by that before it
    const void *new_state, *state, *saved;
    const void *new_cell, *cell_state;  // wide
    void *gates, *product;              // the gradients; the second may be null
};
using StepFunction = void(const RecurrentStep&);
using GradStepFunction = void(const RecurrentGradStep&);

inline Dtype wide_dtype(Dtype dtype) { return dtype == float64 ? float64 : float32; }

// Step t of a contiguous x [time, batch, n].
inline Tensor step_of(const Tensor& x, std::int64_t t) {
    const std::int64_t n = x->shape[2], size = x->shape[1] * n;
    return make_tensor(x->storage, {x->shape[1], n}, {n > 0 ? n : 1, 1}, x->offset + t * size, x->dtype);
}
inline char* step_address(const Tensor& x, std::int64_t t) {
    if (!x.defined() || x->numel == 0) return nullptr;
    return x->bytes() + t * x->shape[1] * x->shape[2] * std::int64_t(size_of(x->dtype));
}
inline void* address(const Tensor& x) { return x.defined() && x->numel > 0 ? raw(x) : nullptr; }
inline const std::int64_t* lengths_of(const Tensor& x) {
    return static_cast<const std::int64_t*>(address(x));
}

// The steps from the first one computed to the last.
struct StepOrder {
    std::int64_t time;
    bool reverse;
    std::int64_t operator[](std::int64_t i) const { return reverse ? time - 1 - i : i; }
};

template <class Multiply>
void run_recurrent(In in, const Recurrent& at, Out out, Multiply multiply, StepFunction& pass) {
    const Tensor &gates = in[of_gates], &weight = in[of_weight_hh], &y = out[to_states],
                 &cells = out[to_cells];
    const std::int64_t time = gates->shape[0], batch = gates->shape[1], hidden = y->shape[2];
    if (y->numel == 0) return;
    const Dtype wide = wide_dtype(gates->dtype);
    const Tensor across =
        make_tensor(weight->storage, {weight->shape[1], weight->shape[0]},
                    {1, std::max<std::int64_t>(1, weight->shape[1])}, weight->offset, weight->dtype);
    const Tensor product = empty({batch, weight->shape[0]}, {.dtype = wide, .device = gates.device()});
    void* const last_cell = address(out[to_last_cell]);
    RecurrentStep step{};
    step.cell = at.cell;
    step.dtype = gates->dtype;
    step.wide = wide;
    step.batch = batch;
    step.hidden = hidden;
    step.lengths = lengths_of(in[of_lengths]);
    step.bias = address(in[of_bias_hh]);
    step.cell_state = address(in[of_cell]);
    const StepOrder order{time, at.reverse};
    Tensor state = in[of_state];
    for (std::int64_t i = 0; i < time; ++i) {
        step.time = order[i];
        if (state.defined()) multiply(state, across, 0.0, product);
        step.gates = step_address(gates, step.time);
        step.product = state.defined() ? raw(product) : nullptr;
        step.state = address(state);
        step.saved = step_address(out[to_saved], step.time);
        step.new_cell = cells->numel > 0 ? step_address(cells, step.time) : last_cell;
        step.last_cell = cells->numel > 0 && i == time - 1 ? last_cell : nullptr;
        state = step_of(y, step.time);
        step.new_state = raw(state);
        pass(step);
        step.cell_state = step.new_cell;
    }
}

template <class Multiply>
void run_recurrent_grad(In in, const RecurrentGrad& at, Out out, Multiply multiply, GradStepFunction& pass) {
    const Tensor &y = in[grad_from_states], &weight = in[grad_from_weight_hh], &cells = in[grad_from_cells];
    const std::int64_t time = y->shape[0];
    if (y->numel == 0) return;
    RecurrentGradStep step{};
    step.cell = at.forward.cell;
    step.dtype = y->dtype;
    step.wide = wide_dtype(y->dtype);
    step.batch = y->shape[1];
    step.hidden = y->shape[2];
    step.gate_count = int(recurrent_gates(step.cell));
    step.lengths = lengths_of(in[grad_from_lengths]);
    step.cell_grad = address(out[grad_to_cell]);
    // Whether the pass itself writes a part of the gradient of the state before, to which the product is
    // added. Otherwise the product overwrites that memory.
    const bool direct = step.cell == RecurrentCell::gru || step.lengths != nullptr;
    const Tensor& products =
        at.forward.cell == RecurrentCell::gru ? out[grad_to_products] : out[grad_to_gates];
    const Tensor& carried = out[grad_to_state];
    const StepOrder order{time, at.forward.reverse};
    for (std::int64_t i = time - 1; i >= 0; --i) {
        const std::int64_t before = i > 0 ? order[i - 1] : -1;
        const bool wanted = i > 0 || at.first_state;
        step.time = order[i];
        step.g = step_address(in[grad_of_states], step.time);
        step.carried_in = i < time - 1 ? raw(carried) : nullptr;
        step.carried = direct && wanted ? raw(carried) : nullptr;
        step.new_state = step_address(y, step.time);
        step.state = i > 0 ? step_address(y, before) : address(in[grad_from_state]);
        step.saved = step_address(in[grad_from_saved], step.time);
        step.new_cell = step_address(cells, step.time);
        step.cell_state = i > 0 ? step_address(cells, before) : address(in[grad_from_cell]);
        step.gates = step_address(out[grad_to_gates], step.time);
        step.product = step.cell == RecurrentCell::gru ? step_address(products, step.time) : nullptr;
        pass(step);
        if (!wanted) continue;
        multiply(step_of(products, step.time), weight, direct ? 1.0 : 0.0, carried);
    }
}

}  // namespace mezzo::kernels
