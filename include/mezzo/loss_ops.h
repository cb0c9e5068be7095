// Further loss functions. All are floating, computed in float32 at least, and have float32 results under
// autocast; inputs broadcast. Reduction::none gives the values per element, or per row where rows are
// compared.
//
//   loss = huber_loss(net(x), y, {.delta = 0.5});
//   loss = kl_div(log_softmax(net(x)), y, {.batch_mean = true});
#pragma once

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

}  // namespace mezzo

#pragma GCC visibility pop
