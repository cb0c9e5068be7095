// Further loss functions. All are floating, computed in float32 at least, and have float32 results under
// autocast; inputs broadcast. Reduction::none gives the values per element, or per row where rows are
// compared.
//
//   loss = huber_loss(net(x), y, {.delta = 0.5});
//   loss = kl_div(log_softmax(net(x)), y, {.batch_mean = true});
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/ops.h"

#pragma GCC visibility push(default)

namespace mezzo {

struct KlDivOptions {
    Reduction reduction = Reduction::mean;
    bool batch_mean = false;  // the sum divided by the size of the first dimension; `reduction` is ignored
    bool log_target = false;  // target holds logarithms, too
};
// target (log(target) - input), the Kullback-Leibler divergence of input, logarithms of probabilities, from
// target; 0 where the probability of target is 0, whatever input is there (-inf included).
[[nodiscard]] Tensor kl_div(const Tensor& input, const Tensor& target, KlDivOptions options = {});

struct HuberOptions {
    double delta = 1;  // > 0; infinity: d^2 / 2 everywhere
    Reduction reduction = Reduction::mean;
};
// d^2 / 2 where |d| < delta, else delta (|d| - delta / 2), of d = input - target, which have one shape.
[[nodiscard]] Tensor huber_loss(const Tensor& input, const Tensor& target, HuberOptions options = {});

struct MarginOptions {
    double margin = 1;
    Reduction reduction = Reduction::mean;
};
// input where target is 1, max(0, margin - input) where it is -1.
[[nodiscard]] Tensor hinge_embedding_loss(const Tensor& input, const Tensor& target,
                                          MarginOptions options = {});
// 1 - cos(a, b) where target, [rows] or 0-dim, is 1, max(0, cos(a, b) - margin) where it is -1, for rows a
// and b [rows, n] or [n].
[[nodiscard]] Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                                           MarginOptions options = {.margin = 0});

struct TripletOptions {
    double margin = 1;         // > 0, as in PyTorch
    double p = 2, eps = 1e-6;  // as in pairwise_distance()
    bool swap = false;         // takes the distance of positive and negative, if that is smaller
    Reduction reduction = Reduction::mean;
};
// max(0, |anchor - positive| - |anchor - negative| + margin) of rows [..., n].
[[nodiscard]] Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                                         TripletOptions options = {});

struct TripletDistanceOptions {
    // Distance of two tensors per row; {}: pairwise_distance().
    std::optional<autograd::Callback<Tensor(const Tensor&, const Tensor&)>> distance = {};
    double margin = 1;  // > 0
    bool swap = false;  // as in TripletOptions
    Reduction reduction = Reduction::mean;
};
// triplet_margin_loss() with another distance.
[[nodiscard]] Tensor triplet_margin_with_distance_loss(const Tensor& anchor, const Tensor& positive,
                                                       const Tensor& negative,
                                                       const TripletDistanceOptions& options = {});
// max(0, -target (a - b) + margin): a should be larger where target is 1, b where it is -1.
[[nodiscard]] Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                                         MarginOptions options = {.margin = 0});
// log(1 + e^(-target input)) for targets of 1 and -1.
[[nodiscard]] Tensor soft_margin_loss(const Tensor& input, const Tensor& target, LossOptions options = {});

struct MultiMarginOptions {
    int p = 1;  // 1 or 2
    double margin = 1;
    Reduction reduction = Reduction::mean;
    Tensor weight = {};  // [classes], floating, a constant: a row's loss is multiplied by its target's weight
};
// The sum over the other classes i of max(0, margin - input[target] + input[i])^p, divided by the number of
// classes: input [..., classes], target int64 [...]. A target that is no class throws Error(value) on the
// CPU; on CUDA, where a check would wait for the device, the loss is NaN.
[[nodiscard]] Tensor multi_margin_loss(const Tensor& input, const Tensor& target,
                                       MultiMarginOptions options = {});
// The sum over targets j and classes i that are no target of max(0, 1 - input[j] + input[i]), divided by the
// number of classes: input [..., classes], target int64 of that shape, whose rows list classes up to the
// first -1. Errors are those of multi_margin_loss(). Takes memory for [..., classes, classes].
[[nodiscard]] Tensor multilabel_margin_loss(const Tensor& input, const Tensor& target,
                                            LossOptions options = {});
struct MultilabelSoftMarginOptions {
    Reduction reduction = Reduction::mean;
    Tensor weight = {};  // broadcasts to input
};
// The mean over the last dimension, the classes, of binary_cross_entropy_with_logits(): target is 1 for
// classes that hold and 0 for the others.
[[nodiscard]] Tensor multilabel_soft_margin_loss(const Tensor& input, const Tensor& target,
                                                 MultilabelSoftMarginOptions options = {});

struct GaussianNllOptions {
    bool full = false;  // adds the constant log(2 pi) / 2
    double eps = 1e-6;  // > 0: the least variance; the gradient passes as if the variance were not limited
    Reduction reduction = Reduction::mean;
};
// (log(var) + (input - target)^2 / var) / 2, the negative log likelihood of target under normal distributions
// of mean input. var broadcasts to input, or has its shape without the last dimension. A negative variance
// throws Error(value) on the CPU; on CUDA it counts as eps.
[[nodiscard]] Tensor gaussian_nll_loss(const Tensor& input, const Tensor& target, const Tensor& var,
                                       GaussianNllOptions options = {});

struct PoissonNllOptions {
    bool log_input = true;  // input is the logarithm of the rate; false: the rate
    bool full = false;      // adds Stirling's approximation of log(target!) for targets above 1
    double eps = 1e-8;      // added to the rate before its logarithm is taken
    Reduction reduction = Reduction::mean;
};
// rate - target log(rate), the negative log likelihood of counts under Poisson distributions.
[[nodiscard]] Tensor poisson_nll_loss(const Tensor& input, const Tensor& target,
                                      PoissonNllOptions options = {});

struct CtcOptions {
    std::int64_t blank = 0;  // the class of blanks
    Reduction reduction = Reduction::mean;
    bool zero_infinity = false;  // 0 for the loss and gradient of a target that does not fit its input
};
// Connectionist temporal classification (Graves et al., ICML 2006): -log of the probability of all alignments
// of a target with its input. log_probs [time, batch, classes] or [time, classes] are logarithms of
// probabilities; targets are classes, int64 or int32: [batch, length] with padding of any value, or all of
// the batch joined in one dimension. The lengths are [batch], or 0-dim without a batch. The result is
// [batch], or 0-dim without a batch, for Reduction::none; the mean divides each loss by its target's length
// (at least 1) before. Infinite where a target does not fit.
//
// The gradient is PyTorch's: e^log_probs minus the probability of each class given the target, which is that
// of the logits if log_probs is their log_softmax(). It has no derivative itself: Error(state). Runs on the
// CPU; for other devices the tensors are copied there and back. Waits for the device. Error(value) for
// lengths and classes out of range.
[[nodiscard]] Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                              const Tensor& target_lengths, CtcOptions options = {});
[[nodiscard]] Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets,
                              const std::vector<std::int64_t>& input_lengths,
                              const std::vector<std::int64_t>& target_lengths, CtcOptions options = {});

}  // namespace mezzo

#pragma GCC visibility pop
