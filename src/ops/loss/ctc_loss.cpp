// Connectionist temporal classification. The algorithm is a kernel of the CPU (src/cpu/reduce/ctc.cpp), which
// other devices run on copies.
#include <cmath>

#include "kernels/loss.h"
#include "mezzo/loss_ops.h"
#include "ops/loss/loss_common.h"

namespace mezzo {

namespace {

const Op<kernels::CtcLossGrad> ctc_loss_grad_op{
    {.name = "ctc_loss_grad", .saves = save_none}, [](const Node&, const Tensors&) -> Tensors {
        fail(ErrorKind::state,
             "ctc_loss: has no second derivative; compute its gradient without create_graph");
    }};

// Inputs: log_probs, targets, input lengths, target lengths.
const Op<kernels::CtcLoss> ctc_loss_op{
    {.name = "ctc_loss", .cast = CastPolicy::fp32},
    [](const Node& c, const kernels::CtcLoss& at, const Tensors& g) -> Tensors {
        const Tensor grad = call(ctc_loss_grad_op, {g[0], c.in(0), c.in(1), c.in(2), c.in(3)},
                                 {.blank = at.blank, .width = at.width}, c.inputs[0].shape);
        return {grad, Tensor(), Tensor(), Tensor()};
    }};

Tensor whole_numbers(const char* what, const Tensor& x, Device device) {
    check_defined("ctc_loss", x);
    check(x.dtype() == int64 || x.dtype() == int32, ErrorKind::dtype, "ctc_loss: ", what, " is ", x.dtype(),
          ", but must be int64 or int32; convert it with to(int64)");
    return x.detach().to(device).to(int64);
}

Tensor lengths_of(const char* what, const Tensor& x, std::int64_t batch, Device device) {
    const Tensor lengths = whole_numbers(what, x, device);
    check(lengths.shape() == Shape{batch} || (batch == 1 && lengths.dim() == 0), ErrorKind::shape,
          "ctc_loss: ", what, " ", lengths.shape(), " has not one length for each of the ", batch,
          " sequences");
    return lengths.reshape({batch});
}

}  // namespace

Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, CtcOptions options) {
    check_floating("ctc_loss", log_probs, "log_probs");
    check_reduction("ctc_loss", options.reduction);
    check(log_probs.dim() == 2 || log_probs.dim() == 3, ErrorKind::shape, "ctc_loss: log_probs ",
          log_probs.shape(), " is neither [time, batch, classes] nor [time, classes]");
    const bool batched = log_probs.dim() == 3;
    const Tensor x = widened(batched ? log_probs : log_probs.unsqueeze(1));
    const std::int64_t batch = x.size(1), classes = x.size(2);
    check(options.blank >= 0 && options.blank < classes, ErrorKind::value, "ctc_loss: blank is ",
          options.blank, ", which is not one of the ", classes, " classes");
    const Device device = x.device();
    const Tensor labels = whole_numbers("targets", targets, device);
    check(labels.dim() == 1 || (labels.dim() == 2 && labels.size(0) == batch), ErrorKind::shape,
          "ctc_loss: targets ", labels.shape(), " are neither [", batch,
          ", length] nor joined in one dimension");
    const Tensor inputs = lengths_of("input_lengths", input_lengths, batch, device);
    const Tensor lengths = lengths_of("target_lengths", target_lengths, batch, device);
    const kernels::CtcLoss at{.blank = options.blank, .width = labels.dim() == 2 ? labels.size(1) : -1};
    Tensor loss = call(ctc_loss_op, {x, labels, inputs, lengths}, at, {batch});
    if (options.zero_infinity) loss = masked_fill(loss, eq(loss, INFINITY), 0);
    if (options.reduction == Reduction::mean) loss = loss / clamp(cast(lengths, loss.dtype()), 1, INFINITY);
    loss = reduced(loss, options.reduction);
    if (!batched && options.reduction == Reduction::none) loss = loss.reshape({});
    return finished_loss(loss, log_probs, log_probs.dtype());
}

Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets,
                const std::vector<std::int64_t>& input_lengths,
                const std::vector<std::int64_t>& target_lengths, CtcOptions options) {
    const auto tensor = [](const std::vector<std::int64_t>& lengths) {
        return Tensor::from(lengths, {std::int64_t(lengths.size())});
    };
    return ctc_loss(log_probs, targets, tensor(input_lengths), tensor(target_lengths), options);
}

}  // namespace mezzo
