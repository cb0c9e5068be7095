// Layers of torch.nn: makes the layer, gives it PyTorch's weights, and calls it.
#include "tools/op_database/layer.h"

namespace database {

namespace {

// The result of a layer whose input has channels: `dims` dimensions without a batch.
template <class M> Tensor channels(const Call& c, int dims, const M& m) {
    const Tensor x = c.forward().x();
    const bool one = x.dim() == dims;
    const Tensor y = channels_first(m(channels_last(one ? x.unsqueeze(0) : x)));
    return one ? y.squeeze(0) : y;
}

std::int64_t one(const Call& c, const std::string& name, std::size_t position, std::int64_t otherwise) {
    const auto list = c.integers(name, position);
    return list.empty() ? otherwise : list[0];
}
mz::Size3d three(const Call& c, const std::string& name, std::size_t position, mz::Size3d otherwise) {
    const auto list = c.integers(name, position);
    if (list.empty()) return otherwise;
    return list.size() == 1 ? mz::Size3d(list[0]) : mz::Size3d{list.at(0), list.at(1), list.at(2)};
}
mz::Size2d two(const Call& c, const std::string& name, std::size_t position, mz::Size2d otherwise) {
    return c.pair(name, position, otherwise);
}

mz::PadMode edge(const std::string& word) {
    const std::map<std::string, mz::PadMode> modes{{"zeros", mz::PadMode::constant},
                                                   {"reflect", mz::PadMode::reflect},
                                                   {"replicate", mz::PadMode::replicate},
                                                   {"circular", mz::PadMode::circular}};
    return modes.at(word);
}

#define CONVOLUTION(Class, dims, size)                                                               \
    {                                                                                                \
        "nn." #Class, [](const Call& c) -> Tensors {                                                 \
            nn::Class##LayerOptions o{.stride = size(c, "stride", 3, 1),                             \
                                      .dilation = size(c, "dilation", 5, 1),                         \
                                      .groups = c.integer("groups", 6, 1),                           \
                                      .bias = c.flag("bias", 7, true),                               \
                                      .padding_mode = edge(c.text("padding_mode", 8, "zeros"))};     \
            if (!c.has("padding", 4) || !c.json("padding", 4).is_string())                           \
                o.padding = size(c, "padding", 4, 0);                                                \
            else if (c.text("padding", 4, "") == "same")                                             \
                o.padding = mz::same_padding;                                                        \
            return {channels(                                                                        \
                c, dims,                                                                             \
                layer<nn::Class>(c, c.integer("in_channels", 0, 1), c.integer("out_channels", 1, 1), \
                                 size(c, "kernel_size", 2, 1), o))};                                 \
        }                                                                                            \
    }
#define TRANSPOSED(Class, dims, size)                                                                \
    {                                                                                                \
        "nn." #Class, [](const Call& c) -> Tensors {                                                 \
            const nn::Class##LayerOptions o{.stride = size(c, "stride", 3, 1),                       \
                                            .padding = size(c, "padding", 4, 0),                     \
                                            .output_padding = size(c, "output_padding", 5, 0),       \
                                            .groups = c.integer("groups", 6, 1),                     \
                                            .bias = c.flag("bias", 7, true),                         \
                                            .dilation = size(c, "dilation", 8, 1)};                  \
            return {channels(                                                                        \
                c, dims,                                                                             \
                layer<nn::Class>(c, c.integer("in_channels", 0, 1), c.integer("out_channels", 1, 1), \
                                 size(c, "kernel_size", 2, 1), o))};                                 \
        }                                                                                            \
    }
#define MAX_POOL(Class, Options, dims, size)                                        \
    {                                                                               \
        "nn." #Class, [](const Call& c) -> Tensors {                                \
            const mz::Options o{.kernel_size = size(c, "kernel_size", 0, 1),        \
                                .stride = size(c, "stride", 1, 0),                  \
                                .padding = size(c, "padding", 2, 0),                \
                                .dilation = size(c, "dilation", 3, 1),              \
                                .ceil_mode = c.flag("ceil_mode", 5)};               \
            const nn::Class& m = layer<nn::Class>(c, o);                            \
            if (!c.flag("return_indices", 4)) return {channels(c, dims, m)};        \
            Tensor indices;                                                         \
            const Tensor values = channels(c, dims, [&](const Tensor& x) {          \
                const mz::Pooled y = m.with_indices(x);                             \
                indices = y.indices;                                                \
                return y.values;                                                    \
            });                                                                     \
            const Tensor first = channels_first(indices);                           \
            return {values, values.dim() < first.dim() ? first.squeeze(0) : first}; \
        }                                                                           \
    }
#define AVG_POOL(Class, dims, size, ...)                                                \
    {                                                                                   \
        "nn." #Class, [](const Call& c) -> Tensors {                                    \
            const mz::Class##Options o{                                                 \
                .kernel_size = size(c, "kernel_size", 0, 1),                            \
                .stride = size(c, "stride", 1, 0),                                      \
                .padding = size(c, "padding", 2, 0),                                    \
                .ceil_mode = c.flag("ceil_mode", 3),                                    \
                .count_include_pad = c.flag("count_include_pad", 4, true) __VA_ARGS__}; \
            return {channels(c, dims, layer<nn::Class>(c, o))};                         \
        }                                                                               \
    }
#define ADAPTIVE(Class, dims, size)                                                        \
    {                                                                                      \
        "nn." #Class, [](const Call& c) -> Tensors {                                       \
            if (c.flag("return_indices", 1)) throw NotHere("indices");                     \
            return {channels(c, dims, layer<nn::Class>(c, size(c, "output_size", 0, 1)))}; \
        }                                                                                  \
    }

Table windows() {
    return {
        CONVOLUTION(Conv1d, 2, one),
        CONVOLUTION(Conv2d, 3, two),
        CONVOLUTION(Conv3d, 4, three),
        TRANSPOSED(ConvTranspose1d, 2, one),
        TRANSPOSED(ConvTranspose2d, 3, two),
        TRANSPOSED(ConvTranspose3d, 4, three),
        MAX_POOL(MaxPool1d, MaxPool1dOptions, 2, one),
        MAX_POOL(MaxPool2d, MaxPool2dOptions, 3, two),
        MAX_POOL(MaxPool3d, MaxPool3dOptions, 4, three),
        AVG_POOL(AvgPool1d, 2, one, ),
        AVG_POOL(AvgPool2d, 3, two, , .divisor_override = c.integer("divisor_override", 5, 0)),
        AVG_POOL(AvgPool3d, 4, three, , .divisor_override = c.integer("divisor_override", 5, 0)),
        ADAPTIVE(AdaptiveAvgPool1d, 2, one),
        ADAPTIVE(AdaptiveAvgPool2d, 3, two),
        ADAPTIVE(AdaptiveAvgPool3d, 4, three),
        ADAPTIVE(AdaptiveMaxPool1d, 2, one),
        ADAPTIVE(AdaptiveMaxPool2d, 3, two),
        ADAPTIVE(AdaptiveMaxPool3d, 4, three),
    };
}

// PyTorch's pairs begin with the last dimension, which is the one before the channels here.
Tensors padded(const Call& c, int axes, mz::PadMode mode, mz::Scalar value = 0) {
    auto sides = c.integers("padding", 0);
    if (sides.size() == 1) sides.assign(std::size_t(2 * axes), sides[0]);
    std::vector<mz::Padding> padding;
    for (std::size_t i = 0; i < sides.size(); i += 2)
        padding.push_back({-2 - std::int64_t(i / 2), sides[i], sides[i + 1]});
    return {channels(c, axes + 1, layer<nn::Pad>(c, padding, mode, value))};
}
#define PADS(axes)                                                                                          \
    {"nn.ReflectionPad" #axes "d", [](const Call& c) { return padded(c, axes, mz::PadMode::reflect); }},    \
        {"nn.ReplicationPad" #axes "d",                                                                     \
         [](const Call& c) { return padded(c, axes, mz::PadMode::replicate); }},                            \
        {"nn.CircularPad" #axes "d", [](const Call& c) { return padded(c, axes, mz::PadMode::circular); }}, \
        {"nn.ZeroPad" #axes "d", [](const Call& c) { return padded(c, axes, mz::PadMode::constant); }}, {   \
        "nn.ConstantPad" #axes "d",                                                                         \
            [](const Call& c) { return padded(c, axes, mz::PadMode::constant, c.scalar("value", 1, 0)); }   \
    }

template <class M> Tensor batch_norm(const Call& c, int dims) {
    const double momentum = c.has("momentum", 2) ? c.number("momentum", 2, 0.1) : 0.1;
    const M& m = layer<M>(
        c, c.integer("num_features", 0, 1),
        nn::BatchNormLayerOptions{.eps = c.number("eps", 1, 1e-5),
                                  .momentum = c.is_null("momentum", 2) ? nn::cumulative_average : momentum,
                                  .affine = c.flag("affine", 3, true),
                                  .bias = c.flag("bias", 99, true),
                                  .track_running_stats = c.flag("track_running_stats", 4, true)});
    return channels(c, dims, m);
}
template <class M> Tensor instance_norm(const Call& c, int dims) {
    return channels(
        c, dims,
        layer<M>(c, c.integer("num_features", 0, 1),
                 nn::InstanceNormLayerOptions{.eps = c.number("eps", 1, 1e-5),
                                              .momentum = c.number("momentum", 2, 0.1),
                                              .affine = c.flag("affine", 3),
                                              .bias = c.flag("bias", 99, true),
                                              .track_running_stats = c.flag("track_running_stats", 4)}));
}

// Norms over several dimensions: over one of their product.
std::int64_t product(const Call& c) {
    if (!c.flag("elementwise_affine", 2, true)) throw NotHere("a layer without weights");
    if (c.integers("normalized_shape", 0).size() > 1) throw NotHere("weights of several dimensions");
    std::int64_t n = 1;
    for (const std::int64_t size : c.integers("normalized_shape", 0)) n *= size;
    return n;
}
template <class M> Tensor over(const Call& c, const M& m) {
    const Tensor x = c.forward().x();
    return m(x.reshape({-1, product(c)})).reshape(x.shape());
}

Table norms_and_pads() {
    return {
        PADS(1),
        PADS(2),
        PADS(3),
        LAYER("BatchNorm1d", batch_norm<nn::BatchNorm1d>(c, -1)),
        LAYER("BatchNorm2d", batch_norm<nn::BatchNorm2d>(c, 3)),
        LAYER("BatchNorm3d", batch_norm<nn::BatchNorm3d>(c, 4)),
        LAYER("InstanceNorm1d", instance_norm<nn::InstanceNorm1d>(c, 2)),
        LAYER("InstanceNorm2d", instance_norm<nn::InstanceNorm2d>(c, 3)),
        LAYER("InstanceNorm3d", instance_norm<nn::InstanceNorm3d>(c, 4)),
        LAYER("GroupNorm",
              channels(c, -1,
                       layer<nn::GroupNorm>(c, c.integer("num_groups", 0, 1), c.integer("num_channels", 1, 1),
                                            nn::GroupNormLayerOptions{.eps = c.number("eps", 2, 1e-5),
                                                                      .affine = c.flag("affine", 3, true),
                                                                      .bias = c.flag("bias", 99, true)}))),
        LAYER("LocalResponseNorm",
              channels(c, -1,
                       layer<nn::LocalResponseNorm>(
                           c, c.integer("size", 0, 1),
                           mz::LocalResponseNormOptions{.alpha = c.number("alpha", 1, 1e-4),
                                                        .beta = c.number("beta", 2, 0.75),
                                                        .k = c.number("k", 3, 1)}))),
    };
}

template <class M, class... A> Tensors simple(const Call& c, const A&... arguments) {
    return {layer<M>(c, arguments...)(c.forward().x())};
}
#define PLAIN(Class)                                                     \
    {                                                                    \
        "nn." #Class, [](const Call& c) { return simple<nn::Class>(c); } \
    }
#define ONE(Class, option, standard)                                                                    \
    {                                                                                                   \
        "nn." #Class, [](const Call& c) { return simple<nn::Class>(c, c.number(option, 0, standard)); } \
    }

Table activations() {
    return {
        PLAIN(ReLU),
        PLAIN(ReLU6),
        PLAIN(Tanh),
        PLAIN(Tanhshrink),
        PLAIN(Sigmoid),
        PLAIN(LogSigmoid),
        PLAIN(Hardsigmoid),
        PLAIN(SiLU),
        PLAIN(Hardswish),
        PLAIN(Mish),
        PLAIN(SELU),
        PLAIN(Softsign),
        ONE(LeakyReLU, "negative_slope", 0.01),
        ONE(ELU, "alpha", 1),
        ONE(CELU, "alpha", 1),
        ONE(Hardshrink, "lambd", 0.5),
        ONE(Softshrink, "lambd", 0.5),
        LAYER("GLU", simple<nn::GLU>(c, c.integer("dim", 0, -1)).at(0)),
        LAYER("Softmax", simple<nn::Softmax>(c, c.integer("dim", 0, -1)).at(0)),
        LAYER("Softmin", simple<nn::Softmin>(c, c.integer("dim", 0, -1)).at(0)),
        LAYER("LogSoftmax", simple<nn::LogSoftmax>(c, c.integer("dim", 0, -1)).at(0)),
        LAYER("GELU", simple<nn::GELU>(
                          c, nn::GELUOptions{.approximate_tanh = c.text("approximate", 0, "none") == "tanh"})
                          .at(0)),
        LAYER("Hardtanh",
              simple<nn::Hardtanh>(c, c.number("min_val", 0, -1), c.number("max_val", 1, 1)).at(0)),
        LAYER("Threshold",
              simple<nn::Threshold>(c, c.number("threshold", 0, 0), c.number("value", 1, 0)).at(0)),
        LAYER("Softplus",
              simple<nn::Softplus>(c, c.number("beta", 0, 1), c.number("threshold", 1, 20)).at(0)),
        LAYER("PReLU", channels(c, -1,
                                layer<nn::PReLU>(
                                    c, nn::PReLUOptions{.num_parameters = c.integer("num_parameters", 0, 1),
                                                        .init = c.number("init", 1, 0.25)}))),
        LAYER("Linear", simple<nn::Linear>(c, c.integer("in_features", 0, 1), c.integer("out_features", 1, 1),
                                           nn::LinearOptions{.bias = c.flag("bias", 2, true)})
                            .at(0)),
        LAYER("Bilinear",
              layer<nn::Bilinear>(c, c.integer("in1_features", 0, 1), c.integer("in2_features", 1, 1),
                                  c.integer("out_features", 2, 1),
                                  nn::LinearOptions{.bias = c.flag("bias", 3, true)})(f.x(), f.x(1))),
        LAYER("Embedding",
              simple<nn::Embedding>(c, c.integer("num_embeddings", 0, 1), c.integer("embedding_dim", 1, 1))
                  .at(0)),
        LAYER("LayerNorm",
              over(c, layer<nn::LayerNorm>(c, product(c),
                                           nn::LayerNormOptions{.eps = c.number("eps", 1, 1e-5),
                                                                .bias = c.flag("bias", 3, true)}))),
        LAYER("RMSNorm", over(c, layer<nn::RMSNorm>(
                                     c, product(c),
                                     nn::RMSNormOptions{.eps = c.number("eps", 1, 2.220446049250313e-16)}))),
    };
}

template <class M, class O> Tensor loss(const Call& c, const O& options) {
    const Call f = c.forward();
    const M& m = layer<M>(c, options);
    if constexpr (requires { m(f.x(), f.x(1), f.x(2)); })
        return m(f.x(), f.x(1), f.x(2));
    else
        return m(f.x(), f.x(1));
}
mz::Reduction reduction(const Call& c) { return c.reduction(); }

// Classes are dimension 1 in PyTorch.
template <class M> Tensor class_loss(const Call& c, const M& m) {
    const Call f = c.forward();
    const Tensor target = mz::is_floating(f.x(1).dtype()) ? channels_last(f.x(1)) : f.x(1);
    return m(channels_last(f.x()), target);
}

Tensor lengths(const Call& f, const std::string& name, std::size_t position) {
    if (f.is_tensor(name, position)) return f.x(position);
    const auto list = f.integers(name, position);
    return Tensor::from(list, {std::int64_t(list.size())});
}
Tensor ctc(const Call& c) {
    const Call f = c.forward();
    const nn::CTCLoss& m = layer<nn::CTCLoss>(c, mz::CtcOptions{.blank = c.integer("blank", 0, 0),
                                                                .reduction = reduction(c),
                                                                .zero_infinity = c.flag("zero_infinity", 2)});
    return m(f.x(), f.x(1), lengths(f, "input_lengths", 2), lengths(f, "target_lengths", 3));
}

Table losses() {
    return {
        LAYER("MSELoss", loss<nn::MSELoss>(c, mz::LossOptions{.reduction = reduction(c)})),
        LAYER("L1Loss", loss<nn::L1Loss>(c, mz::LossOptions{.reduction = reduction(c)})),
        LAYER("SmoothL1Loss", loss<nn::SmoothL1Loss>(c, mz::SmoothL1Options{.beta = c.number("beta", 99, 1),
                                                                            .reduction = reduction(c)})),
        LAYER("HuberLoss", loss<nn::HuberLoss>(c, mz::HuberOptions{.delta = c.number("delta", 99, 1),
                                                                   .reduction = reduction(c)})),
        LAYER("BCELoss", loss<nn::BCELoss>(
                             c, mz::BceOptions{.reduction = reduction(c), .weight = c.tensor("weight", 0)})),
        LAYER("BCEWithLogitsLoss",
              loss<nn::BCEWithLogitsLoss>(
                  c, mz::BceWithLogitsOptions{.reduction = reduction(c),
                                              .weight = c.tensor("weight", 0),
                                              .pos_weight = c.tensor("pos_weight", 99)})),
        LAYER("KLDivLoss",
              loss<nn::KLDivLoss>(
                  c, mz::KlDivOptions{.reduction = c.text("reduction", 99, "mean") == "batchmean"
                                                       ? mz::Reduction::sum
                                                       : reduction(c),
                                      .batch_mean = c.text("reduction", 99, "mean") == "batchmean",
                                      .log_target = c.flag("log_target", 99)})),
        LAYER("HingeEmbeddingLoss",
              loss<nn::HingeEmbeddingLoss>(
                  c, mz::MarginOptions{.margin = c.number("margin", 0, 1), .reduction = reduction(c)})),
        LAYER("SoftMarginLoss", loss<nn::SoftMarginLoss>(c, mz::LossOptions{.reduction = reduction(c)})),
        LAYER("MultiMarginLoss",
              loss<nn::MultiMarginLoss>(c, mz::MultiMarginOptions{.p = int(c.integer("p", 0, 1)),
                                                                  .margin = c.number("margin", 1, 1),
                                                                  .reduction = reduction(c),
                                                                  .weight = c.tensor("weight", 2)})),
        LAYER("MultiLabelMarginLoss",
              loss<nn::MultiLabelMarginLoss>(c, mz::LossOptions{.reduction = reduction(c)})),
        LAYER("MultiLabelSoftMarginLoss",
              loss<nn::MultiLabelSoftMarginLoss>(
                  c, mz::MultilabelSoftMarginOptions{.reduction = reduction(c),
                                                     .weight = c.tensor("weight", 0)})),
    };
}

Table more_losses() {
    return {
        LAYER("PoissonNLLLoss",
              loss<nn::PoissonNLLLoss>(c, mz::PoissonNllOptions{.log_input = c.flag("log_input", 0, true),
                                                                .full = c.flag("full", 1),
                                                                .eps = c.number("eps", 3, 1e-8),
                                                                .reduction = reduction(c)})),
        LAYER("GaussianNLLLoss",
              loss<nn::GaussianNLLLoss>(c, mz::GaussianNllOptions{.full = c.flag("full", 99),
                                                                  .eps = c.number("eps", 99, 1e-6),
                                                                  .reduction = reduction(c)})),
        LAYER("MarginRankingLoss",
              loss<nn::MarginRankingLoss>(
                  c, mz::MarginOptions{.margin = c.number("margin", 0, 0), .reduction = reduction(c)})),
        LAYER("CosineEmbeddingLoss",
              loss<nn::CosineEmbeddingLoss>(
                  c, mz::MarginOptions{.margin = c.number("margin", 0, 0), .reduction = reduction(c)})),
        LAYER("CrossEntropyLoss",
              class_loss(c,
                         layer<nn::CrossEntropyLoss>(
                             c, mz::CrossEntropyOptions{.ignore_index = c.integer("ignore_index", 99, -100),
                                                        .label_smoothing = c.number("label_smoothing", 99, 0),
                                                        .reduction = reduction(c),
                                                        .weight = c.tensor("weight", 0)}))),
        LAYER("NLLLoss",
              class_loss(
                  c, layer<nn::NLLLoss>(c, mz::NllOptions{.ignore_index = c.integer("ignore_index", 99, -100),
                                                          .reduction = reduction(c),
                                                          .weight = c.tensor("weight", 0)}))),
        LAYER("CTCLoss", ctc(c)),
    };
}

}  // namespace

Table layers() {
    Table table = windows();
    for (const Table& more : {norms_and_pads(), activations(), losses(), more_losses(), sequence_layers()})
        for (const auto& [name, run] : more) table[name] = run;
    return table;
}

}  // namespace database
