// Recurrent layers and cells, with PyTorch's parameter names, gate order and initial values. T is the number
// of steps, B the size of the batch.
//
//   const nn::LSTM lstm(64, 128, {.num_layers = 2, .batch_first = true});
//   const auto [output, h, c] = lstm(x);  // x [batch, time, 64], output [batch, time, 128]
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/module.h"
#include "mezzo/recurrent_ops.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

enum class RNNNonlinearity : std::uint8_t { tanh, relu };

struct GRUOptions {
    std::int64_t num_layers = 1;
    bool bias = true;
    bool batch_first = false;  // sequences are [B, T, features] instead of [T, B, features]; states stay
    double dropout = 0;        // of the output of each layer but the last, while training
    bool bidirectional = false;
    Device device = cpu_device;
    Dtype dtype = float32;
};
struct RNNOptions {
    std::int64_t num_layers = 1;
    RNNNonlinearity nonlinearity = RNNNonlinearity::tanh;
    bool bias = true;
    bool batch_first = false;
    double dropout = 0;
    bool bidirectional = false;
    Device device = cpu_device;
    Dtype dtype = float32;
};
struct LSTMOptions {
    std::int64_t num_layers = 1;
    bool bias = true;
    bool batch_first = false;
    double dropout = 0;
    bool bidirectional = false;
    // > 0: states have this size, less than hidden_size (Sak et al., arXiv 1402.1128)
    std::int64_t proj_size = 0;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// Outputs of all steps, and the last states.
struct RNNResult {
    Tensor output;  // [T, B, D * hidden], D directions concatenated; 0 after a sequence's end
    // [num_layers * D, B, hidden]: the state after the last computed step, of the reverse direction after
    // the first one.
    Tensor h_n;
};
struct LSTMState {
    Tensor h;  // [num_layers * D, B, proj_size or hidden]
    Tensor c;  // [num_layers * D, B, hidden]
};
struct LSTMResult {
    Tensor output;
    Tensor h_n, c_n;  // of the shapes of LSTMState
};

// Base class of the recurrent layers, with their parameters.
class RecurrentLayers : public Module {
public:
    // Parameters of one direction of one layer; undefined if the layer has none.
    struct Direction {
        Parameter weight_ih;  // [gates * hidden, features of the layer's input]
        Parameter weight_hh;  // [gates * hidden, hidden or proj_size]
        Parameter bias_ih;    // [gates * hidden]
        Parameter bias_hh;    // [gates * hidden]
        Parameter weight_hr;  // [proj_size, hidden]
    };
    // In files they are "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0" and "weight_hr_l0", in the
    // next layer "..._l1", in the reverse direction "..._l0_reverse". Throws Error(value) if the layer or
    // direction does not exist.
    [[nodiscard]] const Direction& direction(std::int64_t layer, bool reverse = false) const;

    void visit_fields(FieldVisitor& visitor) override;
    [[nodiscard]] std::string describe() const override;

    std::int64_t input_size, hidden_size, num_layers, proj_size;
    double dropout;
    bool batch_first, bidirectional;

protected:
    RecurrentLayers(const char* name, RecurrentCell cell, std::int64_t input, std::int64_t hidden,
                    const LSTMOptions& options);
    [[nodiscard]] LSTMResult run(const Tensor& x, const Tensor& h0, const Tensor& c0,
                                 const Tensor& lengths) const;
    RecurrentCell cell_;

private:
    [[nodiscard]] LSTMResult run_once(const Tensor& x, const Tensor& h0, const Tensor& c0,
                                      const Tensor& lengths) const;
    [[nodiscard]] LSTMResult run_layers(Tensor x, const LSTMState& start, const Tensor& lengths) const;
    void check_directions() const;  // Error(value) if moved from, or if the fields above have been changed
    std::vector<Direction> directions_;  // layer by layer
};

// Parameters start as U(-1/sqrt(hidden), 1/sqrt(hidden)). The constructors throw Error(value) unless sizes
// and num_layers are positive, the dropout is in [0, 1] and 0 <= proj_size < hidden_size.
//
// A call takes x [T, B, input_size], with batch_first [B, T, input_size], or [T, input_size] for one
// sequence, whose results have no dimension B either. Undefined states are zeros. lengths, if defined, is
// int64 [B]: the number of steps of each sequence, in any order. The results are those of PyTorch's
// pack_padded_sequence() and pad_packed_sequence(), but the output has all T steps. Lengths on the CPU must
// be in 1 ... T, else Error(value), and are moved to the device of x. The host does not read lengths on
// another device: below 1 counts as no step, more than T as T. The padding of x is never read.
//
// Error(shape) for other shapes and for T = 0; Error(dtype) where x, h0 and the parameters differ, unless
// Autocast converts them. Under Autocast output and h_n are 16 bit. c_n is float32 (float64 for float64), and
// c0 may have any floating dtype.

// h' = tanh(x W_ih^T + b_ih + h W_hh^T + b_hh), or relu (Elman, Cognitive Science 1990).
class RNN : public RecurrentLayers {
public:
    RNN(std::int64_t input_size, std::int64_t hidden_size, const RNNOptions& options = {});
    [[nodiscard]] RNNResult operator()(const Tensor& x, const Tensor& h0 = {},
                                       const Tensor& lengths = {}) const;
    const char* type_name() const override { return "RNN"; }
};
class LSTM : public RecurrentLayers {
public:
    LSTM(std::int64_t input_size, std::int64_t hidden_size, const LSTMOptions& options = {});
    [[nodiscard]] LSTMResult operator()(const Tensor& x, const LSTMState& start = {},
                                        const Tensor& lengths = {}) const;
    const char* type_name() const override { return "LSTM"; }
};
class GRU : public RecurrentLayers {
public:
    GRU(std::int64_t input_size, std::int64_t hidden_size, const GRUOptions& options = {});
    [[nodiscard]] RNNResult operator()(const Tensor& x, const Tensor& h0 = {},
                                       const Tensor& lengths = {}) const;
    const char* type_name() const override { return "GRU"; }
};

struct CellOptions {
    bool bias = true;
    Device device = cpu_device;
    Dtype dtype = float32;
};
struct RNNCellOptions {
    RNNNonlinearity nonlinearity = RNNNonlinearity::tanh;
    bool bias = true;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// Base class of cells, which compute one step: x [B, input_size] and states [B, hidden_size], or both without
// B. Errors are those of the layers.
class RecurrentCellModule : public Module {
public:
    void visit_fields(FieldVisitor& visitor) override;
    [[nodiscard]] std::string describe() const override;

    Parameter weight_ih, weight_hh;  // [gates * hidden, input_size], [gates * hidden, hidden]
    Parameter bias_ih, bias_hh;      // [gates * hidden], undefined without bias

protected:
    RecurrentCellModule(const char* name, RecurrentCell cell, std::int64_t input_size,
                        std::int64_t hidden_size, const CellOptions& options);
    [[nodiscard]] LSTMState step(const Tensor& x, const LSTMState& state) const;
    RecurrentCell cell_;

private:
    [[nodiscard]] LSTMState step_once(const Tensor& x, const LSTMState& state) const;
};
class RNNCell : public RecurrentCellModule {
public:
    RNNCell(std::int64_t input_size, std::int64_t hidden_size, const RNNCellOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& h = {}) const {
        return step(x, {h, {}}).h;
    }
    const char* type_name() const override { return "RNNCell"; }
};
class LSTMCell : public RecurrentCellModule {
public:
    LSTMCell(std::int64_t input_size, std::int64_t hidden_size, const CellOptions& options = {});
    [[nodiscard]] LSTMState operator()(const Tensor& x, const LSTMState& state = {}) const {
        return step(x, state);
    }
    const char* type_name() const override { return "LSTMCell"; }
};
class GRUCell : public RecurrentCellModule {
public:
    GRUCell(std::int64_t input_size, std::int64_t hidden_size, const CellOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x, const Tensor& h = {}) const {
        return step(x, {h, {}}).h;
    }
    const char* type_name() const override { return "GRUCell"; }
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
