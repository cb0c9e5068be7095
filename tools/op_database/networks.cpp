// Functions of torch.nn.functional: softmax and norms, losses, images, attention.
#include "tools/op_database/call.h"

namespace database {

namespace {

// PyTorch has channels and classes in dimension 1, mezzo in the last.
Tensor channels_last(Tensor x) {
    for (int i = 1; i + 1 < x.dim(); ++i) x = x.transpose(i, i + 1);
    return x;
}
Tensor channels_first(Tensor x) {
    for (int i = x.dim() - 1; i > 1; --i) x = x.transpose(i - 1, i);
    return x;
}

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

Table losses() {
    return {
        OP("mse_loss", {mz::mse_loss(c.x(), c.x(1), loss(c))}),
        OP("l1_loss", {mz::l1_loss(c.x(), c.x(1), loss(c))}),
        OP("smooth_l1_loss",
           {mz::smooth_l1_loss(c.x(), c.x(1),
                               {.beta = c.number("beta", 99, 1), .reduction = c.reduction()})}),
        OP("huber_loss",
           {mz::huber_loss(c.x(), c.x(1), {.delta = c.number("delta", 99, 1), .reduction = c.reduction()})}),
        OP("binary_cross_entropy", {mz::binary_cross_entropy(c.x(), c.x(1), loss(c))}),
        OP("binary_cross_entropy_with_logits",
           {mz::binary_cross_entropy_with_logits(c.x(), c.x(1), loss(c))}),
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

// `dims` is the number of dimensions of a sample without a batch.
template <class F> Tensor images_of(const Call& c, int dims, F&& function) {
    const bool one = c.x().dim() == dims;
    const Tensor y = channels_first(function(channels_last(one ? c.x().unsqueeze(0) : c.x())));
    return one ? y.squeeze(0) : y;
}
Tensor kernel(const Call& c) { return channels_last(c.x(1)); }

mz::Conv2dOptions conv2d_options(const Call& c) {
    return {.stride = c.pair("stride", 3, 1),
            .padding = c.pair("padding", 4, 0),
            .dilation = c.pair("dilation", 5, 1),
            .groups = c.integer("groups", 6, 1)};
}
std::int64_t single(const Call& c, const std::string& name, std::size_t position, std::int64_t otherwise) {
    const auto list = c.integers(name, position);
    return list.empty() ? otherwise : list[0];
}
mz::Conv1dOptions conv1d_options(const Call& c) {
    return {.stride = single(c, "stride", 3, 1),
            .padding = single(c, "padding", 4, 0),
            .dilation = single(c, "dilation", 5, 1),
            .groups = c.integer("groups", 6, 1)};
}
mz::ConvTranspose2dOptions transpose2d_options(const Call& c) {
    return {.stride = c.pair("stride", 3, 1),
            .padding = c.pair("padding", 4, 0),
            .output_padding = c.pair("output_padding", 5, 0),
            .dilation = c.pair("dilation", 7, 1),
            .groups = c.integer("groups", 6, 1)};
}

Table images() {
    return {
        OP("conv2d", {images_of(c, 3,
                                [&](const Tensor& x) {
                                    return mz::conv2d(x, kernel(c), c.tensor("bias", 2), conv2d_options(c));
                                })}),
        OP("conv1d", {images_of(c, 2,
                                [&](const Tensor& x) {
                                    return mz::conv1d(x, kernel(c), c.tensor("bias", 2), conv1d_options(c));
                                })}),
        OP("conv_transpose2d", {images_of(c, 3,
                                          [&](const Tensor& x) {
                                              return mz::conv_transpose2d(x, kernel(c), c.tensor("bias", 2),
                                                                          transpose2d_options(c));
                                          })}),
        OP("max_pool2d", {images_of(c, 3,
                                    [&](const Tensor& x) {
                                        return mz::max_pool2d(x, {.kernel_size = c.pair("kernel_size", 1, 1),
                                                                  .stride = c.pair("stride", 2, 0),
                                                                  .padding = c.pair("padding", 3, 0),
                                                                  .dilation = c.pair("dilation", 4, 1),
                                                                  .ceil_mode = c.flag("ceil_mode", 5)});
                                    })}),
        OP("max_pool1d", {images_of(c, 2,
                                    [&](const Tensor& x) {
                                        return mz::max_pool1d(x,
                                                              {.kernel_size = single(c, "kernel_size", 1, 1),
                                                               .stride = single(c, "stride", 2, 0),
                                                               .padding = single(c, "padding", 3, 0),
                                                               .dilation = single(c, "dilation", 4, 1),
                                                               .ceil_mode = c.flag("ceil_mode", 5)});
                                    })}),
        OP("avg_pool2d", {images_of(c, 3,
                                    [&](const Tensor& x) {
                                        return mz::avg_pool2d(
                                            x, {.kernel_size = c.pair("kernel_size", 1, 1),
                                                .stride = c.pair("stride", 2, 0),
                                                .padding = c.pair("padding", 3, 0),
                                                .ceil_mode = c.flag("ceil_mode", 4),
                                                .count_include_pad = c.flag("count_include_pad", 5, true)});
                                    })}),
        OP("avg_pool1d", {images_of(c, 2,
                                    [&](const Tensor& x) {
                                        return mz::avg_pool1d(
                                            x, {.kernel_size = single(c, "kernel_size", 1, 1),
                                                .stride = single(c, "stride", 2, 0),
                                                .padding = single(c, "padding", 3, 0),
                                                .ceil_mode = c.flag("ceil_mode", 4),
                                                .count_include_pad = c.flag("count_include_pad", 5, true)});
                                    })}),
        OP("adaptive_avg_pool2d", {images_of(c, 3,
                                             [&](const Tensor& x) {
                                                 return mz::adaptive_avg_pool2d(x,
                                                                                c.pair("output_size", 1, 1));
                                             })}),
        OP("adaptive_max_pool2d", {images_of(c, 3,
                                             [&](const Tensor& x) {
                                                 return mz::adaptive_max_pool2d(x,
                                                                                c.pair("output_size", 1, 1));
                                             })}),
        OP("adaptive_avg_pool1d", {images_of(c, 2,
                                             [&](const Tensor& x) {
                                                 return mz::adaptive_avg_pool1d(
                                                     x, single(c, "output_size", 1, 1));
                                             })}),
        OP("adaptive_max_pool1d", {images_of(c, 2,
                                             [&](const Tensor& x) {
                                                 return mz::adaptive_max_pool1d(
                                                     x, single(c, "output_size", 1, 1));
                                             })}),
    };
}

}  // namespace

Table networks() {
    Table table = norms();
    for (const Table& more : {losses(), images()}) table.insert(more.begin(), more.end());
    return table;
}

}  // namespace database
