// Margin losses of class indices, and the loss of several labels per row. Computed in float32 at least, and
// under autocast with float32 results.
#include <algorithm>

#include "autograd/op_observer.h"
#include "mezzo/loss_ops.h"
#include "mezzo/reduce_ops.h"
#include "ops/loss/loss_common.h"

namespace mezzo {

namespace {

struct MultiMargin {
    static constexpr const char* name = "multi_margin_loss";
    int p = 1;
    double margin = 1;
    Reduction reduction = Reduction::mean;
};

// Inputs: x, target and, if there is one, a weight per class.
const Op<MultiMargin> multi_margin_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const MultiMargin& at) -> Tensors {
        const Tensor &x = in[0], target = in[1].unsqueeze(-1);
        const std::int64_t n = x.size(-1);
        const Tensor own = eq(arange(n, {.dtype = int64, .device = x.device()}), target);
        Tensor away = masked_fill(relu(x - gather(x, -1, target) + at.margin), own, 0);
        if (at.p == 2) away = square(away);
        Tensor rows = sum(away, {-1}) / double(n);
        if (in.size() > 2)
            rows = rows * index_select(in[2], 0, in[1].reshape({in[1].numel()})).reshape(rows.shape());
        return {reduced(rows, at.reduction)};
    }};

struct MultilabelMargin {
    static constexpr const char* name = "multilabel_margin_loss";
    Reduction reduction = Reduction::mean;
};

// For every pair of a target j and a class i: [..., j, i].
const Op<MultilabelMargin> multilabel_margin_op{
    {.cast = CastPolicy::fp32, .result = ResultDtype::promoted},
    nullptr,
    [](In in, const MultilabelMargin& at) -> Tensors {
        const Tensor &x = in[0], &target = in[1];
        const Tensor listed = eq(cumsum(lt(target, 0), -1), 0);  // up to the first -1
        const Tensor index = masked_fill(target, !listed, 0), count = cast(listed, int64);
        const Tensor is_target = gt(scatter_add(zeros_like(count), -1, index, count), 0);
        const Tensor away = relu(x.unsqueeze(-2) - gather(x, -1, index).unsqueeze(-1) + 1.0);
        const Tensor pairs = masked_fill(away, (!listed.unsqueeze(-1)) | is_target.unsqueeze(-2), 0);
        return {reduced(sum(pairs, {-2, -1}) / double(x.size(-1)), at.reduction)};
    }};

// A 0-dim tensor counts as one class.
Tensor of_classes(const char* op, const Tensor& x) {
    check_defined(op, x);
    return x.dim() > 0 ? x : x.reshape({1});
}

// Throws for a target outside of [least, classes) on the CPU; elsewhere a check would wait for the device.
void check_classes(const char* op, const Tensor& x, const Tensor& target, std::int64_t least) {
    check_floating(op, x);
    check_defined(op, target);
    check(target.dtype() == int64, ErrorKind::dtype, op, ": target is ", target.dtype(),
          ", but must be int64 class indices; convert it with to(int64)");
    const std::int64_t classes = x.size(-1);
    check(classes > 0, ErrorKind::shape, op, ": input ", x.shape(), " has no classes");
    if (target.device().type() != DeviceType::cpu || target.numel() == 0) return;
    const std::int64_t low = min(target).item<std::int64_t>(), high = max(target).item<std::int64_t>();
    check(low >= least && high < classes, ErrorKind::value, op, ": target ", low < least ? low : high,
          " is not a class; there are ", classes, " classes, so targets are ", least, " to ", classes - 1);
}

}  // namespace

Tensor multi_margin_loss(const Tensor& given, const Tensor& target, MultiMarginOptions options) {
    const char* name = "multi_margin_loss";
    Tensor input = of_classes(name, given);
    if (input.dim() == 1 && target.defined() && target.dim() == 1) input = input.unsqueeze(0);
    check(options.p == 1 || options.p == 2, ErrorKind::value, name, ": p is ", options.p,
          "; it must be 1 or 2");
    check_classes(name, input, target, 0);
    const Shape rows(input.shape().begin(), input.dim() - 1);
    check(target.shape() == rows, ErrorKind::shape, name, ": target ", target.shape(),
          " does not fit the rows of ", input.shape(), ", whose last dimension is the classes");
    Tensors inputs{input, target};
    if (options.weight.defined()) {
        check_floating(name, options.weight, "weight");
        check(options.weight.shape() == Shape{input.size(-1)}, ErrorKind::shape, name, ": weight ",
              options.weight.shape(), " has not one number for each of the ", input.size(-1), " classes");
        inputs.push_back(cast(options.weight.detach(), input.dtype()));
    }
    return call(multi_margin_op, inputs,
                {.p = options.p, .margin = options.margin, .reduction = options.reduction},
                result_shape(name, rows, options.reduction));
}

Tensor multilabel_margin_loss(const Tensor& given, const Tensor& given_target, LossOptions options) {
    const char* name = "multilabel_margin_loss";
    const Tensor input = of_classes(name, given), target = of_classes(name, given_target);
    check_classes(name, input, target, -1);
    check_same_shape(name, input, target);
    const Shape rows(input.shape().begin(), input.dim() - 1);
    return call(multilabel_margin_op, {input, target}, {.reduction = options.reduction},
                result_shape(name, rows, options.reduction));
}

Tensor multilabel_soft_margin_loss(const Tensor& input, const Tensor& target,
                                   MultilabelSoftMarginOptions options) {
    const char* name = "multilabel_soft_margin_loss";
    const CompositeOp here(name);
    check_reduction(name, options.reduction);
    check_floating(name, input);
    check(input.dim() > 0, ErrorKind::shape, name, ": a 0-dim input is not [..., classes]");
    // In float32, so that a loss of 16 bit is rounded once.
    const Tensor values = binary_cross_entropy_with_logits(
        widened(input), target, {.reduction = Reduction::none, .weight = options.weight});
    return finished_loss(reduced(mean(values, {-1}), options.reduction), input,
                         promote(input.dtype(), target.dtype()));
}

}  // namespace mezzo
