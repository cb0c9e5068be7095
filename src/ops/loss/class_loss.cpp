// Losses of class indices: nll_loss and cross_entropy.
#include <algorithm>

#include "kernels/loss.h"
#include "ops/gemm/products.h"
#include "ops/loss/loss_common.h"

namespace mezzo {

namespace {

// [rows, classes], true at each row's target.
Tensor one_hot(const Tensor& target, std::int64_t classes) {
    return eq(arange(classes, {.dtype = int64, .device = target.device()}), target.unsqueeze(1));
}

// [rows]: 1 for targets that count, 0 for ignored ones.
Tensor weights(const Tensor& target, std::int64_t ignore_index, Dtype dtype) {
    return cast(ne(target, double(ignore_index)), dtype);
}

// The losses of the rows summed, averaged over the targets that count, or as they are. `values` must be 0 at
// ignored targets.
Tensor reduced_rows(const Tensor& values, const Tensor& weight, Reduction reduction) {
    if (reduction == Reduction::none) return values;
    return reduction == Reduction::mean ? sum(values) / sum(weight) : sum(values);
}

// Values [rows] or [rows, classes], 0 in ignored rows whatever they hold.
Tensor without_ignored(const Tensor& values, const Tensor& weight) {
    const Tensor ignored = eq(weight, 0.0);
    return masked_fill(values, values.dim() == 2 ? ignored.unsqueeze(1) : ignored, 0);
}

// [rows]: the gradient of each row's loss, for the gradient g of the reduced loss.
Tensor row_grads(const Tensor& g, const Tensor& weight, Reduction reduction) {
    return (reduction == Reduction::mean ? g / sum(weight) : g) * weight;
}

Tensors nll_decomposition(In in, const kernels::NllLoss& at) {
    const Tensor log_p = in[0];
    const Tensor weight = weights(in[1], at.ignore_index, log_p.dtype());
    const Tensor chosen = masked_fill(log_p, logical_not(one_hot(in[1], log_p.size(1))), 0);
    return {reduced_rows(-without_ignored(sum(chosen, {1}), weight), weight, at.reduction)};
}

Tensors nll_grad_decomposition(In in, const kernels::NllLossGrad& at) {
    const Tensor g = in[0];
    const Tensor hot = cast(one_hot(in[1], at.classes), g.dtype());
    return {-(row_grads(g, weights(in[1], at.ignore_index, g.dtype()), at.reduction).unsqueeze(1) * hot)};
}

Tensor nll(const Tensor& log_p, const Tensor& target, const kernels::NllLoss& at);

// Inputs g, target. The op is linear in g and its transpose is nll_loss, which therefore is its gradient.
const Op<kernels::NllLossGrad> nll_loss_grad_op{
    {.name = "nll_loss_grad", .result = ResultDtype::requested, .mixed = true},
    [](const Node& c, const kernels::NllLossGrad& at, const Tensors& g) -> Tensors {
        const kernels::NllLoss loss{.reduction = at.reduction, .ignore_index = at.ignore_index};
        return {nll(g[0], c.in(1), loss), Tensor()};
    },
    nll_grad_decomposition};

const Op<kernels::NllLoss> nll_loss_op{
    {.name = "nll_loss", .cast = CastPolicy::fp32_out, .result = ResultDtype::requested, .mixed = true},
    [](const Node& c, const kernels::NllLoss& at, const Tensors& g) -> Tensors {
        const Shape& shape = c.inputs[0].shape;
        const kernels::NllLossGrad grad{
            .reduction = at.reduction, .ignore_index = at.ignore_index, .classes = shape[1]};
        return {call(nll_loss_grad_op, {g[0], c.in(1)}, grad, shape, c.grad_dtype(0)), Tensor()};
    },
    nll_decomposition};

Shape loss_shape(const Tensor& rows, Reduction reduction) {
    return reduction == Reduction::none ? Shape{rows.size(0)} : Shape{};
}

Tensor nll(const Tensor& log_p, const Tensor& target, const kernels::NllLoss& at) {
    return call(nll_loss_op, {log_p, target}, at, loss_shape(log_p, at.reduction),
                loss_dtype(log_p.dtype(), log_p.dtype()));
}

// Per row: (1 - s) (lse - x[target]) + s (lse - mean(x)), for a label smoothing of s and the log-sum-exp
// lse = max + ln sum e^(x - max). All is computed from x - max: a sum of max and logarithm would round the
// logarithm away where logits are large. The gradient reads max and sum, two results for the same reason.
Tensors cross_entropy_decomposition(In in, const kernels::CrossEntropy& at) {
    const Tensor given = in[0], highest = max(given, {1}, keep_dims()).detach();
    const Tensor x = given - highest, total = sum(exp(x), {1});
    const Tensor weight = weights(in[1], at.ignore_index, x.dtype());
    const Tensor chosen = sum(masked_fill(x, logical_not(one_hot(in[1], x.size(1))), 0), {1});
    Tensor away = chosen;
    if (at.label_smoothing != 0) away = (1 - at.label_smoothing) * chosen + at.label_smoothing * mean(x, {1});
    const Tensor rows = log(total) - away;
    return {reduced_rows(without_ignored(rows, weight), weight, at.reduction), highest.squeeze(1), total};
}

// Per row: g (softmax(x) - ((1 - s) one_hot + s / classes)), with minus the sum of the other classes instead
// of p - 1 at the target, because that difference would cancel. The inputs max and sum are functions of x.
// They are not read here, so that the derivative of this function by x is complete.
Tensors cross_entropy_grad_decomposition(In in, const kernels::CrossEntropyGrad& at) {
    const Tensor g = in[0], x = in[1];
    const Tensor hot = one_hot(in[2], x.size(1)), p = softmax(x, 1);
    const Tensor others = sum(masked_fill(p, hot, 0), {1}, {.keepdim = true});
    const Tensor slope = where(hot, at.label_smoothing - others, p) - at.label_smoothing / double(x.size(1));
    const Tensor weight = weights(in[2], at.ignore_index, x.dtype());
    return {without_ignored(row_grads(g, weight, at.reduction).unsqueeze(1) * slope, weight)};
}

const Op<kernels::CrossEntropyGrad> cross_entropy_grad_op{
    {.name = "cross_entropy_grad", .result = ResultDtype::requested, .mixed = true},
    nullptr,
    cross_entropy_grad_decomposition};

const Op<kernels::CrossEntropy> cross_entropy_op{
    {.name = "cross_entropy",
     .cast = CastPolicy::fp32_out,
     .saves = save_inputs | save_outputs,
     .result = ResultDtype::requested,
     .mixed = true},
    [](const Node& c, const kernels::CrossEntropy& at, const Tensors& g) -> Tensors {
        const kernels::CrossEntropyGrad grad{.reduction = at.reduction,
                                             .ignore_index = at.ignore_index,
                                             .label_smoothing = at.label_smoothing};
        const Tensor highest = c.out(1).detach(), total = c.out(2).detach();
        return {call(cross_entropy_grad_op, {g[0], c.in(0), c.in(1), highest, total}, grad, c.inputs[0].shape,
                     c.grad_dtype(0)),
                Tensor()};
    },
    cross_entropy_decomposition};

Shape leading(const Tensor& x) { return Shape(x.shape().begin(), x.dim() - 1); }
Tensor as_rows(const Tensor& x) { return x.dim() == 1 ? x : x.reshape({x.numel()}); }

// The losses of the rows in the shape of the target where they are not reduced.
Tensor shaped(const Tensor& loss, const Tensor& x, Reduction reduction) {
    return reduction == Reduction::none && x.dim() != 2 ? loss.reshape(leading(x)) : loss;
}

void check_weight(const char* op, const Tensor& weight, std::int64_t classes) {
    if (!weight.defined()) return;
    check_floating(op, weight, "weight");
    check(weight.dim() == 1 && weight.size(0) == classes, ErrorKind::shape, op, ": weight ", weight.shape(),
          " has not one number for each of the ", classes, " classes");
}

void check_classes(const char* op, const Tensor& x, const Tensor& target, const Tensor& weight) {
    check_floating(op, x);
    check_defined(op, target);
    check(x.dim() > 0, ErrorKind::shape, op, ": a 0-dim input is not [..., classes]");
    check(target.dtype() == int64, ErrorKind::dtype, op, ": target is ", target.dtype(),
          ", but must be int64 class indices; convert it with to(int64)");
    check(target.shape() == leading(x), ErrorKind::shape, op, ": target ", target.shape(),
          " does not fit the rows of ", x.shape(), ", whose last dimension is the classes");
    check(x.size(-1) > 0 || target.numel() == 0, ErrorKind::shape, op, ": input ", x.shape(),
          " has no classes");
    check_weight(op, weight, x.size(-1));
}

void check_smoothing(const CrossEntropyOptions& options) {
    check(options.label_smoothing >= 0 && options.label_smoothing <= 1, ErrorKind::value,
          "cross_entropy: label_smoothing ", options.label_smoothing, " is outside [0, 1]");
}

// The kernels of losses without weights make the same check.
void check_targets(const char* op, const Tensor& target, std::int64_t ignored, std::int64_t classes) {
    if (target.device().type() != DeviceType::cpu) return;
    const std::vector<std::int64_t> indices = target.detach().to_vector<std::int64_t>();
    for (std::size_t row = 0; row < indices.size(); ++row)
        check(indices[row] == ignored || (indices[row] >= 0 && indices[row] < classes), ErrorKind::value, op,
              ": target ", indices[row], " in row ", row, " is not a class; there are ", classes,
              " classes, so targets are 0 to ", classes - 1, " or ignore_index ", ignored);
}

// nll_loss with a weight per class, in ops. log_p: [rows, classes], at least float32.
Tensor weighted_nll(const Tensor& log_p, const Tensor& target, const CrossEntropyOptions& options) {
    const Tensor ignored = eq(target, options.ignore_index), safe = masked_fill(target, ignored, 0);
    const Tensor weight = cast(options.weight.detach(), log_p.dtype());
    const Tensor own = masked_fill(index_select(weight, 0, safe), ignored, 0);
    Tensor rows = -weighted(own, gather(log_p, 1, safe.unsqueeze(1)).squeeze(1));
    if (const double smoothing = options.label_smoothing; smoothing != 0) {
        const Tensor smooth = -smoothing / double(log_p.size(1)) * sum(weighted(weight, log_p), {1});
        rows = smoothing == 1 ? smooth : (1 - smoothing) * rows + smooth;
    }
    return reduced_rows(masked_fill(rows, ignored, 0), own, options.reduction);
}

// cross_entropy with probabilities as target: -sum(target * log_softmax(logits)) per row, in ops, so that the
// target may have a gradient, too. Computed at least in float32; the mean is that of the rows.
Tensor soft_cross_entropy(const Tensor& given, const Tensor& target, const CrossEntropyOptions& options) {
    check_floating("cross_entropy", given);
    check(given.dim() > 0, ErrorKind::shape, "cross_entropy: a 0-dim input is not [..., classes]");
    check(target.shape() == given.shape(), ErrorKind::shape,
          "cross_entropy: a floating target has the "
          "probabilities of the classes, and ",
          target.shape(), " is not the shape of the logits, ", given.shape());
    check_smoothing(options);
    check_weight("cross_entropy", options.weight, given.size(-1));
    const Tensor logits = matrix_of(given);
    const Dtype dtype = logits.dtype() == float64 ? float64 : float32;
    const double smoothing = options.label_smoothing;
    Tensor wanted = cast(matrix_of(target), dtype);
    if (smoothing != 0)
        wanted = (1 - smoothing) * wanted + smoothing / double(std::max<std::int64_t>(logits.size(1), 1));
    if (options.weight.defined()) wanted = wanted * cast(options.weight.detach(), dtype);
    const Tensor rows = -sum(weighted(wanted, log_softmax(cast(logits, dtype), 1)), {1});
    const Tensor loss = options.reduction == Reduction::none   ? shaped(rows, given, options.reduction)
                        : options.reduction == Reduction::mean ? mean(rows)
                                                               : sum(rows);
    return finished_loss(loss, logits, logits.dtype());
}

}  // namespace

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target, NllOptions options) {
    check_reduction("nll_loss", options.reduction);
    const Tensor& given = log_probabilities;
    check_classes("nll_loss", given, target, options.weight);
    const Tensor log_p = matrix_of(given), rows = as_rows(target);
    Tensor loss;
    if (options.weight.defined()) {
        check_targets("nll_loss", rows, options.ignore_index, log_p.size(1));
        loss = weighted_nll(
            cast(log_p, loss_dtype(log_p.dtype(), log_p.dtype())), rows,
            {.ignore_index = options.ignore_index, .reduction = options.reduction, .weight = options.weight});
    } else {
        loss = nll(log_p, rows, {.reduction = options.reduction, .ignore_index = options.ignore_index});
    }
    return shaped(finished_loss(loss, given, given.dtype()), given, options.reduction);
}

Tensor cross_entropy(const Tensor& given, const Tensor& target, CrossEntropyOptions options) {
    check_reduction("cross_entropy", options.reduction);
    if (target.defined() && given.defined() && is_floating(target.dtype()) && target.dim() != given.dim() - 1)
        return soft_cross_entropy(given, target, options);
    check_classes("cross_entropy", given, target, options.weight);
    check_smoothing(options);
    const Tensor logits = matrix_of(given), rows = as_rows(target);
    const Dtype dtype = loss_dtype(logits.dtype(), logits.dtype());
    Tensor loss;
    if (options.weight.defined()) {
        check_targets("cross_entropy", rows, options.ignore_index, logits.size(1));
        // Ignored rows are made 0 before: 0 times a derivative that is not finite would be NaN.
        const Tensor ignored = eq(rows, options.ignore_index).unsqueeze(1);
        loss = weighted_nll(log_softmax(masked_fill(cast(logits, dtype), ignored, 0), 1), rows, options);
    } else {
        const kernels::CrossEntropy at{.reduction = options.reduction,
                                       .ignore_index = options.ignore_index,
                                       .label_smoothing = options.label_smoothing};
        const Tensor inputs[] = {logits, rows};
        const Shape shapes[] = {loss_shape(logits, at.reduction), {logits.size(0)}, {logits.size(0)}};
        loss = call(cross_entropy_op, inputs, at, shapes, dtype)[0];
    }
    return shaped(finished_loss(loss, given, given.dtype()), given, options.reduction);
}

}  // namespace mezzo
