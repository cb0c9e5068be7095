// Kernels of one direction of a recurrent layer, over all steps of its sequences.
#pragma once

#include "kernels/kernel.h"
#include "mezzo/recurrent_ops.h"

namespace mezzo::kernels {

// Number of values per unit that a step saves for its gradient: lstm i, f, g, o; gru r, z, n and the state's
// part of n before r is multiplied with it.
constexpr std::int64_t saved_gates(RecurrentCell cell) {
    return cell == RecurrentCell::lstm || cell == RecurrentCell::gru ? 4 : 0;
}

// Inputs: gates [time, batch, G hidden] and the others of RecurrentInput, of which only the weight must be
// defined. Results: those of RecurrentOutput. `wide` is float32, or float64 for float64 gates.
enum RecurrentInput : std::uint8_t {
    of_gates,
    of_state,  // [batch, n], like the next two of the gates' dtype; n is hidden if there are several steps
    of_weight_hh,  // [G hidden, n]
    of_bias_hh,    // [G hidden], gru
    of_cell,       // [batch, hidden], wide, lstm
    of_lengths,    // int64 [batch]
    recurrent_inputs
};
enum RecurrentOutput : std::uint8_t {
    to_states,     // [time, batch, hidden]
    to_saved,      // [time, batch, saved_gates() hidden], or [0] if no gradient will be needed
    to_last_cell,  // [batch, hidden], wide, lstm; else [0]
    to_cells,      // [time, batch, hidden], wide, lstm; [0] if no gradient will be needed, and for others
    recurrent_outputs
};
struct Recurrent {
    static constexpr const char* name = "recurrent";
    RecurrentCell cell = RecurrentCell::rnn_tanh;
    bool reverse = false;
};

// Inputs: the gradient of the states, which may be undefined, the inputs of the forward without gates and
// bias, and its results without the last cell state. Results: the gradients of the gates and of the products
// with weight_hh, both [time, batch, G hidden]; the second is defined for gru only, because for the others
// the two are equal. Then, both wide, the gradient of the state, which is scratch memory if `first_state` is
// false, and for lstm that of the cell state, which holds the last cell state's gradient when the kernel
// begins.
enum RecurrentGradInput : std::uint8_t {
    grad_of_states,
    grad_from_state,
    grad_from_weight_hh,
    grad_from_cell,
    grad_from_lengths,
    grad_from_states,
    grad_from_saved,
    grad_from_cells,
    recurrent_grad_inputs
};
enum RecurrentGradOutput : std::uint8_t {
    grad_to_gates,
    grad_to_products,
    grad_to_state,
    grad_to_cell,
    recurrent_grad_outputs
};
struct RecurrentGrad {
    static constexpr const char* name = "recurrent_grad";
    Recurrent forward = {};
    bool first_state = true;  // whether the gradient of the state before the first step is needed
};

}  // namespace mezzo::kernels
