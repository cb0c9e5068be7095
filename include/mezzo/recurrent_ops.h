// recurrent(): one direction of a recurrent layer as an op, over all steps of its sequences. The layers are
// in rnn.h.
//
//   const nn::LSTMCell cell(64, 128);
//   const Tensor gates = linear(x, cell.weight_ih, cell.bias_ih + cell.bias_hh);  // x [time, batch, 64]
//   y = recurrent(RecurrentCell::lstm, gates, cell.weight_hh).states;             // [time, batch, 128]
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

enum class RecurrentCell : std::uint8_t { rnn_tanh, rnn_relu, lstm, gru };

// Number of gates of a cell: 4 for lstm, in the order i, f, g, o (input, forget, cell, output); 3 for gru, in
// the order r, z, n (reset, update, new); 1 for the others. It is PyTorch's order.
[[nodiscard]] constexpr std::int64_t recurrent_gates(RecurrentCell cell) {
    return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

// B is the size of the batch.
struct RecurrentOptions {
    Tensor h0 = {};       // [B, hidden], the state before the first step; undefined: zeros
    Tensor c0 = {};       // [B, hidden], the cell state before the first step, lstm only; undefined: zeros
    Tensor bias_hh = {};  // [3 hidden], added to the product with weight_hh, gru only; undefined: none
    // int64 [B] on the device of the gates: number of steps of each sequence. After a sequence's end its
    // state does not change. The host does not read the values: below 1 counts as no step, more than there
    // are as all. Undefined: all steps.
    Tensor lengths = {};
    bool reverse = false;  // from the last step of each sequence to the first
};

struct RecurrentResult {
    Tensor states;  // [time, B, hidden]: the state after each step, at the index of that step's gates
    Tensor cell;    // [B, hidden]: the cell state after all steps, float32 or float64; lstm only
};

// Runs the cell over a sequence. gates [time, B, gates * hidden] is the input's part of the gates of all
// steps, such as linear(x, weight_ih, bias); weight_hh is [gates * hidden, hidden]. Each step computes p = h
// weight_hh^T (+ bias_hh), and from its gates x
//   rnn_tanh  h' = tanh(x + p)
//   rnn_relu  h' = relu(x + p)
//   lstm      i, f, o = sigmoid(x + p), g = tanh(x + p); c' = f c + i g; h' = o tanh(c')
//             (Hochreiter and Schmidhuber, Neural Computation 1997; forget gate: Gers et al., 2000)
//   gru       r, z = sigmoid(x + p), n = tanh(x + r p); h' = n + z (h - n)
//             (Cho et al., arXiv 1406.1078, with the reset gate after the product, as in cuDNN and PyTorch)
// Under Autocast products and states are 16 bit; sums of gates and the cell state are float32. The gradient
// of weight_hh is one product over all steps. For a single step without lengths, and not for gru, weight_hh
// may be [gates * hidden, n] with h0 [B, n]. Throws Error(shape) and Error(dtype) for operands that do not
// fit, Error(shape) for no step, and Error(value) for an option that the cell does not read.
[[nodiscard]] RecurrentResult recurrent(RecurrentCell cell, const Tensor& gates, const Tensor& weight_hh,
                                        const RecurrentOptions& options = {});

}  // namespace mezzo

#pragma GCC visibility pop
