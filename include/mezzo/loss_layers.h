// Losses as layers, with PyTorch's names: each calls a function of ops.h or loss_ops.h with its options.
//
//   const nn::CrossEntropyLoss criterion({.label_smoothing = 0.1});
//   loss = criterion(net(x), labels);
#pragma once

#include "mezzo/loss_ops.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

using mezzo::LossOptions;

// Losses of input and target: the class, its function, the function's options and their defaults.
#define MEZZO_LOSS(Class, function, Options, ...)                                                           \
    class Class : public Module {                                                                           \
    public:                                                                                                 \
        explicit Class(const Options& loss_options = {__VA_ARGS__}) : options(loss_options) {}              \
        [[nodiscard]] Tensor operator()(const Tensor& input, const Tensor& target) const {                  \
            return with_hooks([this](const Tensor& x, const Tensor& t) { return function(x, t, options); }, \
                              input, target);                                                               \
        }                                                                                                   \
                                                                                                            \
        Options options;                                                                                    \
        MEZZO_MODULE(Class)                                                                                 \
    };
MEZZO_LOSS(MSELoss, mse_loss, LossOptions)
MEZZO_LOSS(L1Loss, l1_loss, LossOptions)
MEZZO_LOSS(SmoothL1Loss, smooth_l1_loss, SmoothL1Options)
MEZZO_LOSS(HuberLoss, huber_loss, HuberOptions)
MEZZO_LOSS(CrossEntropyLoss, cross_entropy, CrossEntropyOptions)
MEZZO_LOSS(NLLLoss, nll_loss, NllOptions)
MEZZO_LOSS(BCELoss, binary_cross_entropy, BceOptions)
MEZZO_LOSS(BCEWithLogitsLoss, binary_cross_entropy_with_logits, BceWithLogitsOptions)
MEZZO_LOSS(KLDivLoss, kl_div, KlDivOptions)
MEZZO_LOSS(HingeEmbeddingLoss, hinge_embedding_loss, MarginOptions)
MEZZO_LOSS(SoftMarginLoss, soft_margin_loss, LossOptions)
MEZZO_LOSS(MultiMarginLoss, multi_margin_loss, MultiMarginOptions)
MEZZO_LOSS(MultiLabelMarginLoss, multilabel_margin_loss, LossOptions)
MEZZO_LOSS(MultiLabelSoftMarginLoss, multilabel_soft_margin_loss, MultilabelSoftMarginOptions)
MEZZO_LOSS(PoissonNLLLoss, poisson_nll_loss, PoissonNllOptions)
#undef MEZZO_LOSS

// Losses of three tensors, in the function's order.
#define MEZZO_LOSS(Class, function, Options, ...)                                                  \
    class Class : public Module {                                                                  \
    public:                                                                                        \
        explicit Class(const Options& loss_options = {__VA_ARGS__}) : options(loss_options) {}     \
        [[nodiscard]] Tensor operator()(const Tensor& a, const Tensor& b, const Tensor& c) const { \
            return with_hooks([this](const Tensor& x, const Tensor& y,                             \
                                     const Tensor& z) { return function(x, y, z, options); },      \
                              a, b, c);                                                            \
        }                                                                                          \
                                                                                                   \
        Options options;                                                                           \
        MEZZO_MODULE(Class)                                                                        \
    };
MEZZO_LOSS(MarginRankingLoss, margin_ranking_loss, MarginOptions, .margin = 0)
MEZZO_LOSS(CosineEmbeddingLoss, cosine_embedding_loss, MarginOptions, .margin = 0)
MEZZO_LOSS(TripletMarginLoss, triplet_margin_loss, TripletOptions)
MEZZO_LOSS(TripletMarginWithDistanceLoss, triplet_margin_with_distance_loss, TripletDistanceOptions)
MEZZO_LOSS(GaussianNLLLoss, gaussian_nll_loss, GaussianNllOptions)
#undef MEZZO_LOSS

// ctc_loss() of log_probs [time, batch, classes], targets, and the lengths of both.
class CTCLoss : public Module {
public:
    explicit CTCLoss(const CtcOptions& loss_options = {}) : options(loss_options) {}
    [[nodiscard]] Tensor operator()(const Tensor& log_probs, const Tensor& targets,
                                    const Tensor& input_lengths, const Tensor& target_lengths) const {
        return with_hooks([this](const Tensor& x, const Tensor& t, const Tensor& n,
                                 const Tensor& m) { return ctc_loss(x, t, n, m, options); },
                          log_probs, targets, input_lengths, target_lengths);
    }

    CtcOptions options;
    MEZZO_MODULE(CTCLoss)
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
