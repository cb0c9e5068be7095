// recurrent: one direction of a recurrent layer.
#include "mezzo/recurrent_ops.h"

#include <algorithm>

#include "autograd/extra.h"
#include "core/enumerators.h"
#include "kernels/dispatch.h"
#include "kernels/recurrent.h"
#include "ops/gemm/products.h"

namespace mezzo {

namespace {

using kernels::Recurrent;

// ---- in terms of other ops

struct StepResult {
    Tensor state, saved, cell;
};

// One step from x [batch, gates * hidden], the product p of the same shape, and the state and cell state
// before.
StepResult step_of(RecurrentCell cell, const Tensor& x, const Tensor& p, const Tensor& h, const Tensor& c) {
    switch (cell) {
        case RecurrentCell::rnn_tanh:
            return {tanh(x + p), {}, {}};
        case RecurrentCell::rnn_relu:
            return {relu(x + p), {}, {}};
        case RecurrentCell::lstm: {
            const Tensors sums = (x + p).chunk(4, 1);
            const Tensor i = sigmoid(sums[0]), f = sigmoid(sums[1]), g = tanh(sums[2]), o = sigmoid(sums[3]);
            const Tensor after = f * c + i * g;
            return {o * tanh(after), cat({i, f, g, o}, 1), after};
        }
        case RecurrentCell::gru:
            break;
    }
    const Tensors a = x.chunk(3, 1), b = p.chunk(3, 1);
    const Tensor r = sigmoid(a[0] + b[0]), z = sigmoid(a[1] + b[1]), n = tanh(a[2] + r * b[2]);
    return {n + z * (h - n), cat({r, z, n, b[2]}, 1), {}};
}

// The results of steps as [time, batch, n], or [0] if there is none.
Tensor in_order(Tensors steps, bool reverse, const Tensor& like) {
    if (!steps[0].defined()) return zeros({0}, {.dtype = like.dtype(), .device = like.device()});
    if (reverse) std::reverse(steps.begin(), steps.end());
    return stack(steps, 0);
}

Tensors recurrent_decomposition(In in, const Recurrent& at) {
    const Tensor &x = in[kernels::of_gates], &weight = in[kernels::of_weight_hh],
                 &bias = in[kernels::of_bias_hh], &lengths = in[kernels::of_lengths];
    const std::int64_t time = x.size(0), batch = x.size(1), hidden = x.size(2) / recurrent_gates(at.cell);
    const TensorOptions like{.dtype = x.dtype(), .device = x.device()};
    const auto start = [&](const Tensor& given) {
        return given.defined() ? given : zeros({batch, hidden}, like);
    };
    Tensor h = in[kernels::of_state].defined() ? in[kernels::of_state] : zeros({batch, weight.size(1)}, like);
    Tensor c = at.cell == RecurrentCell::lstm ? start(in[kernels::of_cell]) : Tensor();
    Tensors states, saved, cells;
    for (std::int64_t i = 0; i < time; ++i) {
        const std::int64_t t = at.reverse ? time - 1 - i : i;
        const Tensor product = matmul(h, weight.t());
        StepResult step = step_of(at.cell, x.select(0, t), bias.defined() ? product + bias : product, h, c);
        if (lengths.defined()) {
            const Tensor runs = gt(lengths, double(t)).unsqueeze(1);
            step.state = where(runs, step.state, h);
            if (step.saved.defined()) step.saved = masked_fill(step.saved, logical_not(runs), 0);
            if (c.defined()) step.cell = where(runs, step.cell, c);
        }
        h = step.state;
        c = step.cell;
        states.push_back(h);
        saved.push_back(step.saved);
        cells.push_back(c);
    }
    const Tensor none = zeros({0}, like);
    return {in_order(states, at.reverse, x), in_order(saved, at.reverse, x), c.defined() ? c : none,
            in_order(cells, at.reverse, x)};
}

// ---- the gradient

const KernelCache grad_kernel(kernel_id<kernels::RecurrentGrad>);

// The shapes of gates and states.
struct Sizes {
    std::int64_t time, batch, gates, hidden, state;
};
Sizes sizes_of(const Node& c) {
    const Shape &x = c.inputs[kernels::of_gates].shape, &y = c.outputs[kernels::to_states].shape;
    return {x[0], x[1], x[2], y[2], c.inputs[kernels::of_weight_hh].shape[1]};
}

// The results of the gradient's kernel: kernels::RecurrentGradOutput. g: the gradients of the op's results.
Tensors run_grad_kernel(const Node& c, const Recurrent& at, const Tensors& g) {
    const Sizes s = sizes_of(c);
    const Tensor y = c.out(kernels::to_states), &of_states = g[kernels::to_states],
                 &of_cell = g[kernels::to_last_cell];
    const TensorOptions own{.dtype = y.dtype(), .device = y.device()};
    const TensorOptions wide{.dtype = y.dtype() == float64 ? float64 : float32, .device = y.device()};
    Tensors in(kernels::recurrent_grad_inputs), out(kernels::recurrent_grad_outputs);
    if (of_states.defined()) in[kernels::grad_of_states] = cast(of_states, y.dtype()).contiguous();
    in[kernels::grad_from_state] = c.in(kernels::of_state);
    in[kernels::grad_from_weight_hh] = c.in(kernels::of_weight_hh);
    in[kernels::grad_from_cell] = c.in(kernels::of_cell);
    in[kernels::grad_from_lengths] = c.in(kernels::of_lengths);
    in[kernels::grad_from_states] = y;
    in[kernels::grad_from_saved] = c.out(kernels::to_saved);
    in[kernels::grad_from_cells] = c.out(kernels::to_cells);
    out[kernels::grad_to_gates] = empty({s.time, s.batch, s.gates}, own);
    if (at.cell == RecurrentCell::gru)
        out[kernels::grad_to_products] = empty({s.time, s.batch, s.gates}, own);
    out[kernels::grad_to_state] = empty({s.batch, s.state}, wide);
    if (at.cell == RecurrentCell::lstm)
        out[kernels::grad_to_cell] =
            of_cell.defined() ? cast(of_cell, wide.dtype).clone() : zeros({s.batch, s.hidden}, wide);
    const kernels::RecurrentGrad attributes{.forward = at, .first_state = c.needs(kernels::of_state)};
    grad_kernel.on(y.device().type())(In(in), &attributes, Out(out));
    return out;
}

// The gradient of weight_hh from that of the products: each step's with the state before it.
Tensor weight_grad(const Node& c, bool reverse, const Tensor& products) {
    const Tensor y = c.out(kernels::to_states), h0 = c.in(kernels::of_state);
    const std::int64_t time = y.size(0);
    const auto steps = [&](const Tensor& x, std::int64_t begin, std::int64_t end) {
        return matrix_of(x.slice(0, begin, end));
    };
    const auto add = [&](const Tensor& g, const Tensor& state, const Tensor& total) {
        if (!total.defined()) return product_grad(c, kernels::of_weight_hh, g.t(), state);
        add_product(g.t(), state, total);
        return total;
    };
    Tensor total;
    if (time > 1)
        total = reverse ? add(steps(products, 0, time - 1), steps(y, 1, time), total)
                        : add(steps(products, 1, time), steps(y, 0, time - 1), total);
    const std::int64_t first = reverse ? time - 1 : 0;
    if (h0.defined()) total = add(steps(products, first, first + 1), h0, total);
    if (time == 1 && !h0.defined())
        total = zeros(c.inputs[kernels::of_weight_hh].shape,
                      {.dtype = c.grad_dtype(kernels::of_weight_hh), .device = y.device()});
    return total;
}

Tensors recurrent_vjp(const Node& c, const Recurrent& at, const Tensors& g) {
    if (grad_enabled() || grad_kernel.on(c.outputs[0].device.type()) == nullptr)
        return through_decomposition(c, g, grad_enabled());
    const Tensors from_kernel = run_grad_kernel(c, at, g);
    const Tensor products =
        from_kernel[at.cell == RecurrentCell::gru ? kernels::grad_to_products : kernels::grad_to_gates];
    Tensors grads(kernels::recurrent_inputs);
    if (c.needs(kernels::of_gates)) grads[kernels::of_gates] = from_kernel[kernels::grad_to_gates];
    if (c.needs(kernels::of_weight_hh)) grads[kernels::of_weight_hh] = weight_grad(c, at.reverse, products);
    if (c.needs(kernels::of_bias_hh)) {
        const Dtype wanted = c.grad_dtype(kernels::of_bias_hh);
        grads[kernels::of_bias_hh] = column_sum(matrix_of(products), wanted);
    }
    if (c.needs(kernels::of_state)) grads[kernels::of_state] = from_kernel[kernels::grad_to_state];
    if (c.needs(kernels::of_cell)) grads[kernels::of_cell] = from_kernel[kernels::grad_to_cell];
    return grads;
}

OpTraits traits_named(const char* name) {
    return {.name = name,
            .cast = CastPolicy::low,
            .cast_inputs = kernels::of_cell,
            .saves = save_inputs | save_outputs,
            .mixed = true,
            .first_float32_result = kernels::to_last_cell};
}
const Op<Recurrent> rnn_op{traits_named("rnn"), recurrent_vjp, recurrent_decomposition},
    lstm_op{traits_named("lstm"), recurrent_vjp, recurrent_decomposition},
    gru_op{traits_named("gru"), recurrent_vjp, recurrent_decomposition};

const Op<Recurrent>& op_for(RecurrentCell cell) {
    if (cell == RecurrentCell::lstm) return lstm_op;
    return cell == RecurrentCell::gru ? gru_op : rnn_op;
}

// ---- the public function

void check_operands(const char* op, RecurrentCell cell, const Tensor& gates, const Tensor& weight_hh,
                    const RecurrentOptions& o) {
    check_enumerator(op, "cell", cell, RecurrentCell::gru);
    const std::int64_t per_unit = recurrent_gates(cell);
    check_factors(op, gates, weight_hh);
    check(gates.dim() == 3 && gates.size(0) > 0 && gates.size(2) % per_unit == 0, ErrorKind::shape, op,
          ": gates ", gates.shape(), " are not [time, batch, ", per_unit,
          " * hidden] with at least one step");
    const std::int64_t batch = gates.size(1), hidden = gates.size(2) / per_unit;
    const bool one_step = gates.size(0) == 1 && cell != RecurrentCell::gru && !o.lengths.defined();
    check(weight_hh.dim() == 2 && weight_hh.size(0) == gates.size(2) &&
              (weight_hh.size(1) == hidden || one_step),
          ErrorKind::shape, op, ": weight_hh ", weight_hh.shape(), " does not fit gates ", gates.shape(),
          "; it must be ", Shape{gates.size(2), hidden});
    const auto check_state = [&](const char* what, const Tensor& x, const Shape& shape, bool own_dtype) {
        if (!x.defined()) return;
        check_floating(op, x, what);
        check(!own_dtype || autocast_dtype(CastPolicy::low, x) == autocast_dtype(CastPolicy::low, gates),
              ErrorKind::dtype, op, ": ", what, " is ", x.dtype(), ", gates are ", gates.dtype(),
              "; convert one with to(), or open an Autocast scope");
        check(x.shape() == shape, ErrorKind::shape, op, ": ", what, " is ", x.shape(), "; it must be ",
              shape);
    };
    check_state("h0", o.h0, {batch, weight_hh.size(1)}, true);
    check_state("c0", o.c0, {batch, hidden}, false);
    check_state("bias_hh", o.bias_hh, {gates.size(2)}, true);
    check(!o.c0.defined() || cell == RecurrentCell::lstm, ErrorKind::value, op,
          ": c0 is the cell state of an lstm; this cell has none");
    check(!o.bias_hh.defined() || cell == RecurrentCell::gru, ErrorKind::value, op,
          ": bias_hh is read by gru only; add it to the bias of the gates");
    if (!o.lengths.defined()) return;
    check(o.lengths.dtype() == int64, ErrorKind::dtype, op, ": lengths are ", o.lengths.dtype(),
          "; they must be int64");
    check(o.lengths.shape() == Shape{batch}, ErrorKind::shape, op, ": lengths ", o.lengths.shape(),
          " are not one for each of ", batch, " sequences");
}

}  // namespace

RecurrentResult recurrent(RecurrentCell cell, const Tensor& gates, const Tensor& weight_hh,
                          const RecurrentOptions& options) {
    const Op<Recurrent>& op = op_for(cell);
    check_operands(op.name(), cell, gates, weight_hh, options);
    const std::int64_t time = gates.size(0), batch = gates.size(1),
                       hidden = gates.size(2) / recurrent_gates(cell);
    const bool lstm = cell == RecurrentCell::lstm;
    const Dtype wide = gates.dtype() == float64 ? float64 : float32;
    Tensors in(kernels::recurrent_inputs);
    in[kernels::of_gates] = gates;
    in[kernels::of_state] = options.h0;
    in[kernels::of_weight_hh] = weight_hh;
    in[kernels::of_bias_hh] = options.bias_hh;
    if (options.c0.defined()) in[kernels::of_cell] = cast(options.c0, wide);
    in[kernels::of_lengths] = options.lengths;
    bool records = false;
    for (const Tensor& x : in) records = records || recording(x);
    const Shape none{0}, sequence{time, batch, hidden};
    const std::int64_t saved = kernels::saved_gates(cell) * hidden;
    const Shape shapes[] = {sequence, records && saved > 0 ? Shape{time, batch, saved} : none,
                            lstm ? Shape{batch, hidden} : none, records && lstm ? sequence : none};
    const Tensors results = call(op, in, {.cell = cell, .reverse = options.reverse}, shapes);
    return {results[kernels::to_states], lstm ? results[kernels::to_last_cell] : Tensor()};
}

}  // namespace mezzo
