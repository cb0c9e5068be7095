// Recurrent layers, built from layers and directions of recurrent().
#include "mezzo/rnn.h"

#include <cmath>

#include <fmt/format.h>

#include "core/enumerators.h"
#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "mezzo/ops.h"

namespace mezzo::nn {

namespace {

// U(-1/sqrt(hidden), 1/sqrt(hidden)), PyTorch's start values.
Parameter start_value(const Shape& shape, std::int64_t hidden, Device device, Dtype dtype) {
    const Tensor value = empty(shape, {.dtype = dtype, .device = device});
    const double bound = 1 / std::sqrt(double(hidden));
    value.uniform_(-bound, bound);
    return Parameter(value);
}

void check_sizes(const char* name, std::int64_t input, std::int64_t hidden) {
    check(input > 0 && hidden > 0, ErrorKind::value, name, ": input_size is ", input, ", hidden_size ",
          hidden, "; both must be positive");
}

// The input's part of the gates of all steps, including both biases, except gru's second, which is multiplied
// by r.
Tensor gates_of(RecurrentCell cell, const Tensor& x, const Tensor& weight, const Tensor& bias_ih,
                const Tensor& bias_hh) {
    const bool both = bias_ih.defined() && cell != RecurrentCell::gru;
    return linear(x, weight, both ? bias_ih + bias_hh : bias_ih);
}
Tensor later_bias(RecurrentCell cell, const Tensor& bias_hh) {
    return cell == RecurrentCell::gru ? bias_hh : Tensor();
}

// [T, B, 1]: true for the steps of each sequence.
Tensor steps_within(const Tensor& lengths, std::int64_t time) {
    const Tensor steps = arange(time, {.dtype = int64, .device = lengths.device()});
    return gt(lengths, steps.unsqueeze(1)).unsqueeze(2);
}

// Lengths on the device of x, after the checks.
Tensor checked_lengths(const char* name, const Tensor& lengths, const Tensor& x) {
    if (!lengths.defined()) return lengths;
    check(lengths.dtype() == int64, ErrorKind::dtype, name, ": lengths are ", lengths.dtype(),
          "; they must be int64");
    check(lengths.shape() == Shape{x.size(1)}, ErrorKind::shape, name, ": lengths ", lengths.shape(),
          " are not one for each of ", x.size(1), " sequences");
    if (lengths.device().type() != DeviceType::cpu) return lengths;
    for (const std::int64_t n : lengths.to_vector<std::int64_t>())
        check(n >= 1 && n <= x.size(0), ErrorKind::value, name, ": a length is ", n, "; it must be in 1 ... ",
              x.size(0), ", the number of steps");
    return lengths.to(x.device());
}

void check_input(const char* name, const Tensor& x, std::int64_t features, bool batch_first) {
    check(x.defined(), ErrorKind::value, name, ": the input is undefined");
    const char* const order = batch_first ? "[batch, time, " : "[time, batch, ";
    check((x.dim() == 3 || x.dim() == 2) && x.size(-1) == features, ErrorKind::shape, name, ": input ",
          x.shape(), " is neither ", order, features, "] nor [time, ", features, "]");
    const std::int64_t time = x.size(x.dim() == 3 && batch_first ? 1 : 0);
    check(time > 0, ErrorKind::shape, name, ": input ", x.shape(), " has no step");
}

// A start state as [layers, B, n]; that of a single sequence lacks B.
Tensor checked_state(const char* name, const char* what, const Tensor& given, bool single,
                     const Shape& shape) {
    if (!given.defined()) return given;
    const Tensor state = single && given.dim() == 2 ? given.unsqueeze(1) : given;
    check(state.shape() == shape, ErrorKind::shape, name, ": ", what, " is ", given.shape(), "; it must be ",
          single ? Shape{shape[0], shape[2]} : shape);
    return state;
}

Tensor layer_of(const Tensor& state, std::int64_t i) { return state.defined() ? state.select(0, i) : state; }

struct DirectionResult {
    Tensor states, h, c;  // the last two: after the last step
};

// Runs a direction with projected states step by step, because each step needs the projection before it.
DirectionResult run_projected(const RecurrentLayers::Direction& p, const Tensor& gates,
                              const RecurrentOptions& start) {
    const std::int64_t time = gates.size(0), batch = gates.size(1);
    Tensor h = start.h0, c = start.c0;
    Tensors states(static_cast<std::size_t>(time));
    for (std::int64_t i = 0; i < time; ++i) {
        const std::int64_t t = start.reverse ? time - 1 - i : i;
        const RecurrentResult step =
            recurrent(RecurrentCell::lstm, gates.slice(0, t, t + 1), p.weight_hh, {.h0 = h, .c0 = c});
        Tensor next_h = linear(step.states.select(0, 0), p.weight_hr), next_c = step.cell;
        if (start.lengths.defined()) {
            const Tensor runs = gt(start.lengths, double(t)).unsqueeze(1);
            const auto before = [&](const Tensor& state, const Tensor& like) {
                return state.defined()
                           ? state.to(like.dtype())
                           : zeros({batch, like.size(1)}, {.dtype = like.dtype(), .device = like.device()});
            };
            next_h = where(runs, next_h, before(h, next_h));
            next_c = where(runs, next_c, before(c, next_c));
        }
        h = states[std::size_t(t)] = next_h;
        c = next_c;
    }
    return {stack(states, 0), h, c};
}

DirectionResult run_direction(RecurrentCell cell, const RecurrentLayers::Direction& p, const Tensor& x,
                              RecurrentOptions start) {
    const Tensor gates = gates_of(cell, x, p.weight_ih, p.bias_ih, p.bias_hh);
    if (p.weight_hr.defined()) return run_projected(p, gates, start);
    start.bias_hh = later_bias(cell, p.bias_hh);
    const RecurrentResult result = recurrent(cell, gates, p.weight_hh, start);
    return {result.states, result.states.select(0, start.reverse ? 0 : gates.size(0) - 1), result.cell};
}

std::string suffix_of(std::int64_t layer, bool reverse) {
    return "_l" + std::to_string(layer) + (reverse ? "_reverse" : "");
}

// Options that every layer has.
template <class Options> LSTMOptions as_lstm(const Options& o) {
    return {.num_layers = o.num_layers,
            .bias = o.bias,
            .batch_first = o.batch_first,
            .dropout = o.dropout,
            .bidirectional = o.bidirectional,
            .device = o.device,
            .dtype = o.dtype};
}
RecurrentCell rnn_cell(RNNNonlinearity nonlinearity) {
    check_enumerator("RNN", "nonlinearity", nonlinearity, RNNNonlinearity::relu);
    return nonlinearity == RNNNonlinearity::relu ? RecurrentCell::rnn_relu : RecurrentCell::rnn_tanh;
}

}  // namespace

RecurrentLayers::RecurrentLayers(const char* name, RecurrentCell cell, std::int64_t input,
                                 std::int64_t hidden, const LSTMOptions& o)
    : input_size(input),
      hidden_size(hidden),
      num_layers(o.num_layers),
      proj_size(o.proj_size),
      dropout(o.dropout),
      batch_first(o.batch_first),
      bidirectional(o.bidirectional),
      cell_(cell) {
    check_sizes(name, input, hidden);
    check(num_layers > 0, ErrorKind::value, name, ": num_layers is ", num_layers, "; it must be positive");
    check(dropout >= 0 && dropout <= 1, ErrorKind::value, name, ": dropout is ", dropout,
          "; it must be in [0, 1]");
    check(proj_size >= 0 && proj_size < hidden, ErrorKind::value, name, ": proj_size is ", proj_size,
          "; it must be in [0, hidden_size), and hidden_size is ", hidden);
    const std::int64_t state = proj_size > 0 ? proj_size : hidden, directions = bidirectional ? 2 : 1;
    const std::int64_t gates = checked_numel(name, {recurrent_gates(cell), hidden}, sizeof(double));
    const auto parameter = [&](const Shape& shape) { return start_value(shape, hidden, o.device, o.dtype); };
    for (std::int64_t i = 0; i < num_layers * directions; ++i) {
        Direction d;
        d.weight_ih = parameter({gates, i < directions ? input : state * directions});
        d.weight_hh = parameter({gates, state});
        if (o.bias) d.bias_ih = parameter({gates});
        if (o.bias) d.bias_hh = parameter({gates});
        if (proj_size > 0) d.weight_hr = parameter({proj_size, hidden});
        directions_.push_back(d);
    }
}

void RecurrentLayers::check_directions() const {
    const auto have = std::int64_t(directions_.size());
    check(have > 0, ErrorKind::value, type_name(), ": the layer has no parameters; it has been moved from");
    check(num_layers == have / (bidirectional ? 2 : 1) && have % (bidirectional ? 2 : 1) == 0,
          ErrorKind::value, type_name(), ": num_layers is ", num_layers,
          bidirectional ? ", bidirectional" : "", ", and there are parameters of ", have,
          " directions; make a new layer instead of changing its sizes");
}

const RecurrentLayers::Direction& RecurrentLayers::direction(std::int64_t layer, bool reverse) const {
    check(layer >= 0 && layer < num_layers && (bidirectional || !reverse), ErrorKind::value, type_name(),
          ": no layer ", layer, reverse ? " in the reverse direction" : "", "; there are ", num_layers,
          bidirectional ? " of two directions" : " of one direction");
    check_directions();
    return directions_[std::size_t(bidirectional ? 2 * layer + (reverse ? 1 : 0) : layer)];
}

void RecurrentLayers::visit_fields(FieldVisitor& visitor) {
    std::int64_t i = 0;
    for (Direction& d : directions_) {
        const std::string suffix = suffix_of(bidirectional ? i / 2 : i, bidirectional && i % 2 == 1);
        visitor.parameter("weight_ih" + suffix, d.weight_ih);
        visitor.parameter("weight_hh" + suffix, d.weight_hh);
        visitor.parameter("bias_ih" + suffix, d.bias_ih);
        visitor.parameter("bias_hh" + suffix, d.bias_hh);
        visitor.parameter("weight_hr" + suffix, d.weight_hr);
        ++i;
    }
}

std::string RecurrentLayers::describe() const {
    std::string text = fmt::format("input_size={}, hidden_size={}", input_size, hidden_size);
    if (cell_ == RecurrentCell::rnn_relu) text += ", nonlinearity=relu";
    if (proj_size > 0) text += fmt::format(", proj_size={}", proj_size);
    if (num_layers != 1) text += fmt::format(", num_layers={}", num_layers);
    if (!directions_.empty() && !directions_[0].bias_ih.defined()) text += ", bias=false";
    if (batch_first) text += ", batch_first=true";
    if (dropout > 0) text += fmt::format(", dropout={:g}", dropout);
    if (bidirectional) text += ", bidirectional=true";
    return text;
}

// x [T, B, features] with zeros behind the ends.
LSTMResult RecurrentLayers::run_layers(Tensor x, const LSTMState& start, const Tensor& given) const {
    const Tensor lengths = checked_lengths(type_name(), given, x);
    const Tensor padding = lengths.defined() ? logical_not(steps_within(lengths, x.size(0))) : Tensor();
    const auto without_padding = [&](const Tensor& y) {
        return padding.defined() ? masked_fill(y, padding, 0) : y;
    };
    x = without_padding(x);
    Tensors h_n, c_n;
    const std::int64_t directions = bidirectional ? 2 : 1;
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
        if (layer > 0) x = mezzo::dropout(x, dropout, training());
        Tensors sides;
        for (std::int64_t d = 0; d < directions; ++d) {
            const std::int64_t i = layer * directions + d;
            const DirectionResult result = run_direction(cell_, directions_[std::size_t(i)], x,
                                                         {.h0 = layer_of(start.h, i),
                                                          .c0 = layer_of(start.c, i),
                                                          .lengths = lengths,
                                                          .reverse = d == 1});
            sides.push_back(result.states);
            h_n.push_back(result.h);
            c_n.push_back(result.c);
        }
        x = without_padding(directions == 2 ? cat(sides, 2) : sides[0]);
    }
    return {x, stack(h_n, 0), c_n[0].defined() ? stack(c_n, 0) : Tensor()};
}

LSTMResult RecurrentLayers::run(const Tensor& given, const Tensor& h0, const Tensor& c0,
                                const Tensor& lengths) const {
    if (!has_hooks()) return run_once(given, h0, c0, lengths);
    const Tensors y = with_hooks(
        [&](const Tensor& x, const Tensor& h, const Tensor& c) {
            const LSTMResult result = run_once(x, h, c, lengths);
            return Tensors{result.output, result.h_n, result.c_n};
        },
        given, h0, c0);
    return {y[0], y[1], y[2]};
}

LSTMResult RecurrentLayers::run_once(const Tensor& given, const Tensor& h0, const Tensor& c0,
                                     const Tensor& lengths) const {
    const ModuleScope here(*this);
    const char* const name = type_name();
    check_directions();
    check_input(name, given, input_size, batch_first);
    const bool single = given.dim() == 2;
    const Tensor x = single ? given.unsqueeze(1) : batch_first ? given.transpose(0, 1) : given;
    const std::int64_t states = num_layers * (bidirectional ? 2 : 1), batch = x.size(1);
    const LSTMState start{
        checked_state(name, "h0", h0, single, {states, batch, proj_size > 0 ? proj_size : hidden_size}),
        checked_state(name, "c0", c0, single, {states, batch, hidden_size})};
    LSTMResult result = run_layers(x, start, lengths);
    if (single)
        for (Tensor* y : {&result.output, &result.h_n, &result.c_n}) *y = y->defined() ? y->squeeze(1) : *y;
    else if (batch_first)
        result.output = result.output.transpose(0, 1);
    return result;
}

RNN::RNN(std::int64_t input, std::int64_t hidden, const RNNOptions& options)
    : RecurrentLayers("RNN", rnn_cell(options.nonlinearity), input, hidden, as_lstm(options)) {}
RNNResult RNN::operator()(const Tensor& x, const Tensor& h0, const Tensor& lengths) const {
    const LSTMResult result = run(x, h0, {}, lengths);
    return {result.output, result.h_n};
}

LSTM::LSTM(std::int64_t input, std::int64_t hidden, const LSTMOptions& options)
    : RecurrentLayers("LSTM", RecurrentCell::lstm, input, hidden, options) {}
LSTMResult LSTM::operator()(const Tensor& x, const LSTMState& start, const Tensor& lengths) const {
    return run(x, start.h, start.c, lengths);
}

GRU::GRU(std::int64_t input, std::int64_t hidden, const GRUOptions& options)
    : RecurrentLayers("GRU", RecurrentCell::gru, input, hidden, as_lstm(options)) {}
RNNResult GRU::operator()(const Tensor& x, const Tensor& h0, const Tensor& lengths) const {
    const LSTMResult result = run(x, h0, {}, lengths);
    return {result.output, result.h_n};
}

RecurrentCellModule::RecurrentCellModule(const char* name, RecurrentCell cell, std::int64_t input_size,
                                         std::int64_t hidden_size, const CellOptions& o)
    : cell_(cell) {
    check_sizes(name, input_size, hidden_size);
    const std::int64_t gates = checked_numel(name, {recurrent_gates(cell), hidden_size}, sizeof(double));
    const auto parameter = [&](const Shape& shape) {
        return start_value(shape, hidden_size, o.device, o.dtype);
    };
    weight_ih = parameter({gates, input_size});
    weight_hh = parameter({gates, hidden_size});
    if (o.bias) bias_ih = parameter({gates});
    if (o.bias) bias_hh = parameter({gates});
}

void RecurrentCellModule::visit_fields(FieldVisitor& visitor) {
    detail::visit_fields(visitor, "weight_ih, weight_hh, bias_ih, bias_hh", weight_ih, weight_hh, bias_ih,
                         bias_hh);
}

std::string RecurrentCellModule::describe() const {
    return fmt::format("{}, {}{}{}", weight_ih.size(1), weight_hh.size(1),
                       bias_ih.defined() ? "" : ", bias=false",
                       cell_ == RecurrentCell::rnn_relu ? ", nonlinearity=relu" : "");
}

LSTMState RecurrentCellModule::step(const Tensor& given, const LSTMState& state) const {
    if (!has_hooks()) return step_once(given, state);
    const Tensors y = with_hooks(
        [&](const Tensor& x, const Tensor& h, const Tensor& c) {
            const LSTMState result = step_once(x, {h, c});
            return Tensors{result.h, result.c};
        },
        given, state.h, state.c);
    return {y[0], y[1]};
}

LSTMState RecurrentCellModule::step_once(const Tensor& given, const LSTMState& state) const {
    const ModuleScope here(*this);
    check(given.defined() && (given.dim() == 1 || given.dim() == 2) && given.size(-1) == weight_ih.size(1),
          ErrorKind::shape, type_name(), ": input ", given.defined() ? given.shape() : Shape{},
          " is neither [batch, ", weight_ih.size(1), "] nor [", weight_ih.size(1), "]");
    const bool single = given.dim() == 1;
    const auto as_batch = [&](const Tensor& x) { return single && x.defined() ? x.unsqueeze(0) : x; };
    const Tensor x = as_batch(given).unsqueeze(0);
    const RecurrentResult result =
        recurrent(cell_, gates_of(cell_, x, weight_ih, bias_ih, bias_hh), weight_hh,
                  {.h0 = as_batch(state.h), .c0 = as_batch(state.c), .bias_hh = later_bias(cell_, bias_hh)});
    const Tensor h = result.states.select(0, 0);
    if (!single) return {h, result.cell};
    return {h.squeeze(0), result.cell.defined() ? result.cell.squeeze(0) : Tensor()};
}

RNNCell::RNNCell(std::int64_t input_size, std::int64_t hidden_size, const RNNCellOptions& o)
    : RecurrentCellModule("RNNCell", rnn_cell(o.nonlinearity), input_size, hidden_size,
                          {.bias = o.bias, .device = o.device, .dtype = o.dtype}) {}
LSTMCell::LSTMCell(std::int64_t input_size, std::int64_t hidden_size, const CellOptions& options)
    : RecurrentCellModule("LSTMCell", RecurrentCell::lstm, input_size, hidden_size, options) {}
GRUCell::GRUCell(std::int64_t input_size, std::int64_t hidden_size, const CellOptions& options)
    : RecurrentCellModule("GRUCell", RecurrentCell::gru, input_size, hidden_size, options) {}

}  // namespace mezzo::nn
