// Functions of torch.nn.functional: softmax and norms, losses, images, attention.
#include "tools/op_database/call.h"

namespace database {

namespace {

Tensor softmax_of(const Call& c, std::size_t dtype) {
    const auto wanted = c.dtype("dtype", dtype);
    return wanted ? mz::softmax(c.x(), c.integer("dim", 1, -1), *wanted)
                  : mz::softmax(c.x(), c.integer("dim", 1, -1));
}
Tensor log_softmax_of(const Call& c, std::size_t dtype) {
    const auto wanted = c.dtype("dtype", dtype);
    return wanted ? mz::log_softmax(c.x(), c.integer("dim", 1, -1), *wanted)
                  : mz::log_softmax(c.x(), c.integer("dim", 1, -1));
}

// layer_norm() and rms_norm() normalise over the last dimension: several become one.
template <class F> Tensor over_last(const Call& c, F&& norm) {
    const mz::Shape sizes = c.axes("normalized_shape", 1);
    const Tensor x = c.x();
    return norm(x.flatten(x.dim() - sizes.size(), -1)).reshape(x.shape());
}
Tensor flat(const Tensor& weight) { return weight.defined() ? weight.reshape({-1}) : weight; }

// Without a batch of heads: in four dimensions all the same.
Tensor attention(const Call& c) {
    mz::AttentionOptions options{.mask = c.tensor("attn_mask", 3),
                                 .causal = c.flag("is_causal", 5),
                                 .scale = c.number("scale", 99, 0)};
    if (c.number("dropout_p", 4, 0) > 0) throw NotHere("random");
    if (options.causal && c.x().size(-2) != c.x(1).size(-2))
        throw NotHere("causal: here the last query sees all keys");
    const bool three = c.x().dim() == 3;
    const auto four = [&](const Tensor& x) { return three && x.defined() ? x.unsqueeze(0) : x; };
    Tensor k = four(c.x(1)), v = four(c.x(2));
    if (c.flag("enable_gqa", 99) && k.size(1) != c.x().size(1)) {
        k = mz::repeat_interleave(k, c.x().size(1) / k.size(1), 1);
        v = mz::repeat_interleave(v, c.x().size(1) / v.size(1), 1);
    }
    if (options.mask.defined() && options.mask.dim() == 3) options.mask = options.mask.unsqueeze(0);
    const Tensor y = mz::scaled_dot_product_attention(four(c.x()), k, v, options);
    return three ? y.squeeze(0) : y;
}

Tensor bag(const Call& c) {
    const std::map<std::string, mz::BagMode> modes{
        {"sum", mz::BagMode::sum}, {"mean", mz::BagMode::mean}, {"max", mz::BagMode::max}};
    if (c.has("max_norm", 99) || c.flag("scale_grad_by_freq", 99))
        throw NotHere("weights that the call changes");
    const Tensor offsets = c.tensor("offsets", 2);
    std::int64_t padding = c.integer("padding_idx", 10, -1);
    if (padding < 0 && c.has("padding_idx", 10)) padding += c.x().size(0);  // counted from the end
    return mz::embedding_bag(c.x(), c.x(1).to(mz::int64),
                             {.offsets = offsets.defined() ? offsets.to(mz::int64) : offsets,
                              .mode = modes.at(c.text("mode", 6, "mean")),
                              .per_sample_weights = c.tensor("per_sample_weights", 8),
                              .include_last_offset = c.flag("include_last_offset", 9),
                              .padding_idx = padding});
}

Table norms() {
    return {
        OP("softmax", {softmax_of(c, 3)}),
        OP("log_softmax", {log_softmax_of(c, 3)}),
        OP("softmin",
           {mz::softmin(c.x().to(c.dtype("dtype", 99).value_or(c.x().dtype())), c.integer("dim", 1, -1))}),
        OP("layer_norm", {over_last(c,
                                    [&](const Tensor& x) {
                                        return mz::layer_norm(x, flat(c.tensor("weight", 2)),
                                                              flat(c.tensor("bias", 3)),
                                                              c.number("eps", 4, 1e-5));
                                    })}),
        OP("rms_norm", {over_last(c,
                                  [&](const Tensor& x) {
                                      return mz::rms_norm(
                                          x, flat(c.tensor("weight", 2)),
                                          c.number("eps", 3,
                                                   x.dtype() == mz::float64 ? 2.220446049250313e-16
                                                                            : 1.1920928955078125e-07));
                                  })}),
        OP("embedding_bag", {bag(c)}),
        OP("group_norm", {channels_first(mz::group_norm(channels_last(c.x()), c.integer("num_groups", 1, 1),
                                                        c.tensor("weight", 2), c.tensor("bias", 3),
                                                        c.number("eps", 4, 1e-5)))}),
        OP("batch_norm", {channels_first(mz::batch_norm(channels_last(c.x()), c.tensor("running_mean", 1),
                                                        c.tensor("running_var", 2), c.tensor("weight", 3),
                                                        c.tensor("bias", 4),
                                                        {.training = c.flag("training", 5),
                                                         .momentum = c.number("momentum", 6, 0.1),
                                                         .eps = c.number("eps", 7, 1e-5)}))}),
        OP("scaled_dot_product_attention", {attention(c)}),
    };
}

mz::LossOptions loss(const Call& c) { return {.reduction = c.reduction()}; }

Tensor cross_entropy_of(const Call& c) {
    const Tensor x = channels_last(c.x());
    const Tensor t = mz::is_floating(c.x(1).dtype()) ? channels_last(c.x(1)) : c.x(1);
    return mz::cross_entropy(x, t,
                             {.ignore_index = c.integer("ignore_index", 99, -100),
                              .label_smoothing = c.number("label_smoothing", 99, 0),
                              .reduction = c.reduction(),
                              .weight = c.tensor("weight", 2)});
}

Tensor lengths(const Call& c, const std::string& name, std::size_t position) {
    if (c.is_tensor(name, position)) return c.x(position);
    const auto list = c.integers(name, position);
    return Tensor::from(list, {std::int64_t(list.size())});
}
Tensor ctc(const Call& c) {
    return mz::ctc_loss(c.x(), c.x(1), lengths(c, "input_lengths", 2), lengths(c, "target_lengths", 3),
                        {.blank = c.integer("blank", 4, 0),
                         .reduction = c.reduction(5),
                         .zero_infinity = c.flag("zero_infinity", 6)});
}

Table losses() {
    return {
        OP("mse_loss", {mz::mse_loss(c.x(), c.x(1), loss(c))}),
        OP("l1_loss", {mz::l1_loss(c.x(), c.x(1), loss(c))}),
        OP("smooth_l1_loss",
           {mz::smooth_l1_loss(c.x(), c.x(1),
                               {.beta = c.number("beta", 99, 1), .reduction = c.reduction()})}),
        OP("huber_loss",
           {mz::huber_loss(c.x(), c.x(1), {.delta = c.number("delta", 99, 1), .reduction = c.reduction()})}),
        OP("binary_cross_entropy",
           {mz::binary_cross_entropy(c.x(), c.x(1),
                                     {.reduction = c.reduction(), .weight = c.tensor("weight", 2)})}),
        OP("binary_cross_entropy_with_logits",
           {mz::binary_cross_entropy_with_logits(c.x(), c.x(1),
                                                 {.reduction = c.reduction(),
                                                  .weight = c.tensor("weight", 2),
                                                  .pos_weight = c.tensor("pos_weight", 99)})}),
    };
}

Table more_losses() {
    return {
        OP("margin_ranking_loss",
           {mz::margin_ranking_loss(c.x(), c.x(1), c.x(2),
                                    {.margin = c.number("margin", 3, 0), .reduction = c.reduction()})}),
        OP("soft_margin_loss", {mz::soft_margin_loss(c.x(), c.x(1), loss(c))}),
        OP("multi_margin_loss", {mz::multi_margin_loss(c.x(), c.x(1),
                                                       {.p = int(c.integer("p", 2, 1)),
                                                        .margin = c.number("margin", 3, 1),
                                                        .reduction = c.reduction(),
                                                        .weight = c.tensor("weight", 4)})}),
        OP("multilabel_margin_loss", {mz::multilabel_margin_loss(c.x(), c.x(1), loss(c))}),
        OP("multilabel_soft_margin_loss",
           {mz::multilabel_soft_margin_loss(c.x(), c.x(1),
                                            {.reduction = c.reduction(), .weight = c.tensor("weight", 2)})}),
        OP("gaussian_nll_loss",
           {mz::gaussian_nll_loss(
               c.x(), c.x(1),
               c.is_tensor("var", 2) ? c.x(2)
                                     : mz::full({1}, c.scalar("var", 2, 1), {.dtype = c.x().dtype()}),
               {.full = c.flag("full", 3), .eps = c.number("eps", 4, 1e-6), .reduction = c.reduction()})}),
        OP("poisson_nll_loss", {mz::poisson_nll_loss(c.x(), c.x(1),
                                                     {.log_input = c.flag("log_input", 2, true),
                                                      .full = c.flag("full", 3),
                                                      .eps = c.number("eps", 99, 1e-8),
                                                      .reduction = c.reduction()})}),
        OP("triplet_margin_with_distance_loss",
           {mz::triplet_margin_with_distance_loss(c.x(), c.x(1), c.x(2),
                                                  {.margin = c.number("margin", 99, 1),
                                                   .swap = c.flag("swap", 99),
                                                   .reduction = c.reduction()})}),
        OP("ctc_loss", {ctc(c)}),
        OP("cross_entropy", {cross_entropy_of(c)}),
        OP("nll_loss", {mz::nll_loss(channels_last(c.x()), c.x(1),
                                     {.ignore_index = c.integer("ignore_index", 99, -100),
                                      .reduction = c.reduction(),
                                      .weight = c.tensor("weight", 2)})}),
        OP("kl_div",
           {mz::kl_div(c.x(), c.x(1),
                       {.reduction = c.text("reduction", 99, "mean") == "batchmean" ? mz::Reduction::sum
                                                                                    : c.reduction(),
                        .batch_mean = c.text("reduction", 99, "mean") == "batchmean",
                        .log_target = c.flag("log_target", 99)})}),
        OP("hinge_embedding_loss",
           {mz::hinge_embedding_loss(c.x(), c.x(1),
                                     {.margin = c.number("margin", 2, 1), .reduction = c.reduction()})}),
        OP("cosine_embedding_loss",
           {mz::cosine_embedding_loss(c.x(), c.x(1), c.x(2),
                                      {.margin = c.number("margin", 3, 0), .reduction = c.reduction()})}),
        OP("triplet_margin_loss", {mz::triplet_margin_loss(c.x(), c.x(1), c.x(2),
                                                           {.margin = c.number("margin", 3, 1),
                                                            .p = c.number("p", 4, 2),
                                                            .eps = c.number("eps", 5, 1e-6),
                                                            .swap = c.flag("swap", 6),
                                                            .reduction = c.reduction()})}),
    };
}

}  // namespace

Table networks() {
    Table table = norms();
    for (const Table& more : {losses(), more_losses()}) table.insert(more.begin(), more.end());
    return table;
}

}  // namespace database
