// Layers of torch.nn: makes the layer, gives it PyTorch's weights, and calls it.
#include <memory>

#include "tools/op_database/call.h"

namespace database {

namespace {

namespace nn = mezzo::nn;

// The layer with the weights of the line, in its mode, kept by the call for the gradients of its parameters.
template <class M, class... A> M& layer(const Call& c, const A&... arguments) {
    auto made = std::make_shared<M>(arguments...);
    made->to(mz::float64);
    mz::io::load_weights(*made, c.state(), {.strict = true});
    made->train(c.training());
    c.keep(made);
    return *made;
}

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

#define LAYER(name, ...)                           \
    {                                              \
        "nn." name, [](const Call& c) -> Tensors { \
            const Call f = c.forward();            \
            static_cast<void>(f);                  \
            return {__VA_ARGS__};                  \
        }                                          \
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

// Recurrent layers take a batch: without one, of one sequence.
template <class M, class O> M& recurrent(const Call& c, O options) {
    options.num_layers = c.integer("num_layers", 2, 1);
    options.bias = c.flag("bias", 99, true);
    options.batch_first = c.flag("batch_first", 99);
    options.bidirectional = c.flag("bidirectional", 99);
    return layer<M>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1), options);
}
nn::RNNOptions rnn_options(const Call& c) {
    nn::RNNOptions options;
    if (c.text("nonlinearity", 99, "tanh") == "relu") options.nonlinearity = nn::RNNNonlinearity::relu;
    return options;
}
bool packed(const Call& f) { return f.has("input", 0) && !f.is_tensor("input", 0); }

template <class M> Tensors states(const Call& c, const M& m) {
    const Call f = c.forward();
    if (packed(f)) throw NotHere("a packed sequence");
    const bool single = f.x().dim() == 2;
    const int batch = m.batch_first ? 0 : 1;
    const Tensor x = single ? f.x().unsqueeze(batch) : f.x();
    const Tensor h = f.tensor("hx", 1);
    const auto y = m(x, single && h.defined() ? h.unsqueeze(1) : h);
    return single ? Tensors{y.output.squeeze(batch), y.h_n.squeeze(1)} : Tensors{y.output, y.h_n};
}
Tensors lstm_states(const Call& c, const nn::LSTM& m) {
    const Call f = c.forward();
    if (packed(f)) throw NotHere("a packed sequence");
    const bool single = f.x().dim() == 2;
    const int batch = m.batch_first ? 0 : 1;
    const auto alone = [&](const Tensor& x) { return single ? x.unsqueeze(1) : x; };
    nn::LSTMState start;
    if (f.has("hx", 1))
        start = {alone(f.tensor(f.json("hx", 1).at(0))), alone(f.tensor(f.json("hx", 1).at(1)))};
    const auto y = m(single ? f.x().unsqueeze(batch) : f.x(), start);
    if (single) return {y.output.squeeze(batch), y.h_n.squeeze(1), y.c_n.squeeze(1)};
    return {y.output, y.h_n, y.c_n};
}
template <class M> Tensor cell(const Call& c, const M& m) {
    const Call f = c.forward();
    const bool single = f.x().dim() == 1;
    const Tensor h = f.tensor("hx", 1);
    const Tensor y = m(single ? f.x().unsqueeze(0) : f.x(), single && h.defined() ? h.unsqueeze(0) : h);
    return single ? y.squeeze(0) : y;
}

Table recurrent_layers() {
    return {
        {"nn.RNN", [](const Call& c) { return states(c, recurrent<nn::RNN>(c, rnn_options(c))); }},
        {"nn.GRU", [](const Call& c) { return states(c, recurrent<nn::GRU>(c, nn::GRUOptions{})); }},
        {"nn.LSTM", [](const Call& c) { return lstm_states(c, recurrent<nn::LSTM>(c, nn::LSTMOptions{.proj_size = c.integer("proj_size", 99, 0)})); }},
        LAYER("RNNCell", cell(c, layer<nn::RNNCell>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1),
                                                    nn::RNNCellOptions{.nonlinearity = rnn_options(c).nonlinearity, .bias = c.flag("bias", 2, true)}))),
        LAYER("GRUCell", cell(c, layer<nn::GRUCell>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1), nn::CellOptions{.bias = c.flag("bias", 2, true)}))),
        {"nn.LSTMCell", [](const Call& c) -> Tensors {
             const Call f = c.forward();
             const nn::LSTMCell& m = layer<nn::LSTMCell>(c, c.integer("input_size", 0, 1), c.integer("hidden_size", 1, 1), nn::CellOptions{.bias = c.flag("bias", 2, true)});
             const bool single = f.x().dim() == 1;
             const auto alone = [&](const Tensor& x) { return single ? x.unsqueeze(0) : x; };
             nn::LSTMState start;
             if (f.has("hx", 1)) start = {alone(f.tensor(f.json("hx", 1).at(0))), alone(f.tensor(f.json("hx", 1).at(1)))};
             const nn::LSTMState y = m(alone(f.x()), start);
             return single ? Tensors{y.h.squeeze(0), y.c.squeeze(0)} : Tensors{y.h, y.c};
         }},
    };
}

// PyTorch's masks hide where they are true, and their batches are second unless batch_first.
Tensor visible(const Tensor& mask) {
    return mask.defined() && mask.dtype() == mz::boolean ? mz::logical_not(mask) : mask;
}
struct Batches {
    bool first, single;
    Tensor in(const Tensor& x) const { return single ? x.unsqueeze(0) : first ? x : x.transpose(0, 1); }
    Tensor out(const Tensor& y) const { return single ? y.squeeze(0) : first ? y : y.transpose(0, 1); }
    Tensor keys(const Tensor& mask) const {
        if (mask.defined() && mask.dtype() != mz::boolean) throw NotHere("key padding with numbers");
        return mask.defined() && single ? visible(mask).unsqueeze(0) : visible(mask);
    }
};

nn::TransformerEncoderLayerOptions block(const Call& c) {
    nn::TransformerEncoderLayerOptions o{.dim_feedforward = c.integer("dim_feedforward", 2, 2048),
                                         .dropout = c.number("dropout", 3, 0.1),
                                         .layer_norm_eps = c.number("layer_norm_eps", 5, 1e-5),
                                         .norm_first = c.flag("norm_first", 7)};
    if (c.has("activation", 4)) {
        const Json& activation = c.json("activation", 4);
        const std::string name =
            activation.is_string() ? activation.get<std::string>() : activation.value("function", "");
        if (name == "gelu") o.activation = mz::LinearActivation::gelu;
        if (name != "gelu" && name != "relu") throw NotHere("activation " + activation.dump());
    }
    if (!c.flag("bias", 8, true)) throw NotHere("a block without bias");
    if (o.dropout > 0 && c.training()) throw NotHere("random");
    return o;
}

nn::AttentionMasks masks(const Call& f, const Batches& b, const std::string& mask, std::size_t at,
                         const std::string& keys, std::size_t keys_at) {
    return {.key_mask = b.keys(f.tensor(keys, keys_at)), .mask = visible(f.tensor(mask, at))};
}

Tensors attention(const Call& c) {
    const Call f = c.forward();
    const nn::MultiheadAttentionOptions o{.dropout = c.number("dropout", 2, 0),
                                          .bias = c.flag("bias", 3, true),
                                          .add_bias_kv = c.flag("add_bias_kv", 4),
                                          .add_zero_attn = c.flag("add_zero_attn", 5),
                                          .kdim = c.integer("kdim", 6, 0),
                                          .vdim = c.integer("vdim", 7, 0)};
    const auto& m =
        layer<nn::MultiheadAttention>(c, c.integer("embed_dim", 0, 1), c.integer("num_heads", 1, 1), o);
    const Batches b{c.flag("batch_first", 8), f.x().dim() == 2};
    const nn::AttentionMasks masked = masks(f, b, "attn_mask", 5, "key_padding_mask", 3);
    if (!f.flag("need_weights", 4, true)) return {b.out(m(b.in(f.x()), b.in(f.x(1)), b.in(f.x(2)), masked))};
    const auto y =
        m.attend(b.in(f.x()), b.in(f.x(1)), b.in(f.x(2)), masked, f.flag("average_attn_weights", 6, true));
    return {b.out(y.output), b.single ? y.weights.squeeze(0) : y.weights};
}

Table transformers() {
    return {
        {"nn.MultiheadAttention", attention},
        {"nn.TransformerEncoderLayer",
         [](const Call& c) -> Tensors {
             const Call f = c.forward();
             const auto& m = layer<nn::TransformerEncoderLayer>(c, c.integer("d_model", 0, 1),
                                                                c.integer("nhead", 1, 1), block(c));
             const Batches b{c.flag("batch_first", 6), f.x().dim() == 2};
             return {b.out(m(b.in(f.x()), masks(f, b, "src_mask", 1, "src_key_padding_mask", 2)))};
         }},
        {"nn.TransformerDecoderLayer",
         [](const Call& c) -> Tensors {
             const Call f = c.forward();
             const auto& m = layer<nn::TransformerDecoderLayer>(c, c.integer("d_model", 0, 1),
                                                                c.integer("nhead", 1, 1), block(c));
             const Batches b{c.flag("batch_first", 6), f.x().dim() == 2};
             return {b.out(m(b.in(f.x()), b.in(f.x(1)),
                             {.tgt = masks(f, b, "tgt_mask", 2, "tgt_key_padding_mask", 4),
                              .memory = masks(f, b, "memory_mask", 3, "memory_key_padding_mask", 5)}))};
         }},
        {"nn.Transformer",
         [](const Call& c) -> Tensors {
             const Call f = c.forward();
             nn::TransformerOptions o{.num_encoder_layers = c.integer("num_encoder_layers", 2, 6),
                                      .num_decoder_layers = c.integer("num_decoder_layers", 3, 6)};
             o.layer = {.dim_feedforward = c.integer("dim_feedforward", 4, 2048),
                        .dropout = c.number("dropout", 5, 0.1),
                        .norm_first = c.flag("norm_first", 99)};
             if (o.layer.dropout > 0 && c.training()) throw NotHere("random");
             if (!c.flag("bias", 99, true)) throw NotHere("blocks without bias");
             const auto& m =
                 layer<nn::Transformer>(c, c.integer("d_model", 0, 512), c.integer("nhead", 1, 8), o);
             const Batches b{c.flag("batch_first", 99), f.x().dim() == 2};
             return {b.out(m(b.in(f.x()), b.in(f.x(1)),
                             {.src = masks(f, b, "src_mask", 2, "src_key_padding_mask", 5),
                              .tgt = masks(f, b, "tgt_mask", 3, "tgt_key_padding_mask", 6),
                              .memory = masks(f, b, "memory_mask", 4, "memory_key_padding_mask", 7)}))};
         }},
    };
}

}  // namespace

Table layers() {
    Table table = windows();
    for (const Table& more : {norms_and_pads(), activations(), losses(), recurrent_layers(), transformers()})
        for (const auto& [name, run] : more) table[name] = run;
    return table;
}

}  // namespace database
