// Layers with state of their own, and Sequential.
#include <cmath>
#include <typeinfo>

#include <fmt/format.h>

#include "core/tensor_impl.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "mezzo/nn.h"
#include "mezzo/pointwise_ops.h"
#include "nn/replace.h"

namespace mezzo::nn {

namespace {

// U(-bound, bound) with bound = 1/sqrt(fan_in): PyTorch's kaiming_uniform_(a = sqrt(5)) for the weight, and
// its bias.
Parameter uniform_parameter(const Shape& shape, std::int64_t fan_in, const LinearOptions& options) {
    const Tensor value = empty(shape, {.dtype = options.dtype, .device = options.device});
    const double bound = fan_in > 0 ? 1 / std::sqrt(double(fan_in)) : 0;
    value.uniform_(-bound, bound);
    return Parameter(value);
}

}  // namespace

Linear::Linear(std::int64_t in_features, std::int64_t out_features, const LinearOptions& options) {
    check(in_features >= 0 && out_features >= 0, ErrorKind::value, "Linear: ", in_features, " inputs and ",
          out_features, " outputs; neither may be negative");
    weight = uniform_parameter({out_features, in_features}, in_features, options);
    if (options.bias) bias = uniform_parameter({out_features}, in_features, options);
}

std::string Linear::describe() const {
    const std::string text = fmt::format("in_features={}, out_features={}, bias={}", weight.size(1),
                                         weight.size(0), bias.defined());
    return is_quantized(weight) ? text + fmt::format(", weight={}", name(weight.dtype())) : text;
}

Embedding::Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, const EmbeddingOptions& options)
    : padding_idx(options.padding_idx) {
    check(num_embeddings >= 0 && embedding_dim >= 0, ErrorKind::value, "Embedding: ", num_embeddings,
          " rows of ", embedding_dim, " elements; neither may be negative");
    check(padding_idx >= -1 && padding_idx < num_embeddings, ErrorKind::value, "Embedding: padding_idx ",
          padding_idx, " is outside the ", num_embeddings, " rows; -1 stands for none");
    const Tensor value =
        empty({num_embeddings, embedding_dim}, {.dtype = options.dtype, .device = options.device});
    value.normal_(0, 1);
    if (padding_idx >= 0) value[padding_idx].zero_();
    weight = Parameter(value);
    weight->grads().embedding = true;
}

std::string Embedding::describe() const {
    const std::string sizes =
        fmt::format("num_embeddings={}, embedding_dim={}", weight.size(0), weight.size(1));
    return padding_idx < 0 ? sizes : sizes + fmt::format(", padding_idx={}", padding_idx);
}

Embedding Embedding::from_pretrained(const Tensor& weight, bool freeze, std::int64_t padding_idx) {
    check(weight.defined() && weight.dim() == 2, ErrorKind::shape, "Embedding.from_pretrained: weight ",
          weight.defined() ? weight.shape() : Shape{}, " is not [num_embeddings, embedding_dim]");
    Embedding result(0, 0);
    check(padding_idx >= -1 && padding_idx < weight.size(0), ErrorKind::value,
          "Embedding.from_pretrained: padding_idx ", padding_idx, " is outside the ", weight.size(0),
          " rows");
    result.weight = Parameter(weight.detach());
    result.weight->grads().embedding = true;
    result.weight.set_requires_grad(!freeze);
    result.padding_idx = padding_idx;
    return result;
}

EmbeddingBag::EmbeddingBag(std::int64_t num_embeddings, std::int64_t embedding_dim,
                           const EmbeddingBagLayerOptions& options)
    : weight(Embedding(num_embeddings, embedding_dim,
                       {.padding_idx = options.padding_idx, .device = options.device, .dtype = options.dtype})
                 .weight),
      mode(options.mode),
      include_last_offset(options.include_last_offset),
      padding_idx(options.padding_idx) {}

Tensor EmbeddingBag::operator()(const Tensor& input, const Tensor& offsets,
                                const Tensor& per_sample_weights) const {
    return with_hooks(
        [this](const Tensor& index, const Tensor& begins, const Tensor& factors) {
            return embedding_bag(weight, index,
                                 {.offsets = begins,
                                  .mode = mode,
                                  .per_sample_weights = factors,
                                  .include_last_offset = include_last_offset,
                                  .padding_idx = padding_idx});
        },
        input, offsets, per_sample_weights);
}

std::string EmbeddingBag::describe() const {
    const char* const names[] = {"sum", "mean", "max"};
    return fmt::format("{}, {}, mode={}", weight.size(0), weight.size(1), names[int(mode)]);
}

Bilinear::Bilinear(std::int64_t in1_features, std::int64_t in2_features, std::int64_t out_features,
                   const LinearOptions& options) {
    check(in1_features >= 0 && in2_features >= 0 && out_features >= 0, ErrorKind::value,
          "Bilinear: ", in1_features, " and ", in2_features, " inputs and ", out_features,
          " outputs; none may be negative");
    weight = uniform_parameter({out_features, in1_features, in2_features}, in1_features, options);
    if (options.bias) bias = uniform_parameter({out_features}, in1_features, options);
}

std::string Bilinear::describe() const {
    return fmt::format("in1_features={}, in2_features={}, out_features={}, bias={}", weight.size(1),
                       weight.size(2), weight.size(0), bias.defined());
}

SwiGLU::SwiGLU(std::int64_t features, std::int64_t hidden_features, const SwiGLUOptions& o)
    : gate_proj(features, hidden_features, {.bias = o.bias, .device = o.device, .dtype = o.dtype}),
      up_proj(features, hidden_features, {.bias = o.bias, .device = o.device, .dtype = o.dtype}),
      down_proj(hidden_features, features, {.bias = o.bias, .device = o.device, .dtype = o.dtype}) {
    place_side_by_side({gate_proj.weight, up_proj.weight});  // so that merged_linear() is one product
    if (o.bias) place_side_by_side({gate_proj.bias, up_proj.bias});
}

Tensor SwiGLU::operator()(const Tensor& input) const {
    const ModuleScope here(*this);
    return with_hooks(
        [this](const Tensor& x) {
            if (gate_proj.has_hooks() || up_proj.has_hooks())
                return down_proj(swiglu(gate_proj(x), up_proj(x)));
            return down_proj(
                swiglu(merged_linear(x, {gate_proj.weight, up_proj.weight}, {gate_proj.bias, up_proj.bias})));
        },
        input);
}

std::string Flatten::describe() const { return fmt::format("start_dim={}, end_dim={}", start_dim, end_dim); }

Tensor Unflatten::operator()(const Tensor& input) const {
    check(input.defined() && dim < input.dim() && dim >= -input.dim(), ErrorKind::shape, "Unflatten: dim ",
          dim, " does not exist in an input of ", input.defined() ? input.dim() : 0, " dimensions");
    return with_hooks(
        [this](const Tensor& x) {
            const int at = int(dim < 0 ? dim + x.dim() : dim);
            Shape shape = x.shape();
            shape.erase(at);
            for (int d = 0; d < unflattened_size.size(); ++d) shape.insert(at + d, unflattened_size[d]);
            return x.reshape(shape);
        },
        input);
}

std::string Unflatten::describe() const {
    return fmt::format("dim={}, unflattened_size={}", dim, mezzo::detail::text_of(unflattened_size));
}

namespace {

// n ones or zeros, the neutral weight or bias of a normalisation.
template <class Options>
Parameter row_parameter(const char* module, std::int64_t n, double value, const Options& options) {
    check(n > 0, ErrorKind::value, module, ": n is ", n, "; rows need at least one element");
    check(options.eps >= 0, ErrorKind::value, module, ": eps ", options.eps, " is negative or not a number");
    return Parameter(full({n}, value, {.dtype = options.dtype, .device = options.device}));
}

}  // namespace

LayerNorm::LayerNorm(std::int64_t n, const LayerNormOptions& options)
    : weight(row_parameter("LayerNorm", n, 1, options)), eps(options.eps) {
    if (options.bias) bias = row_parameter("LayerNorm", n, 0, options);
}

std::string LayerNorm::describe() const {
    return fmt::format("{}, eps={:g}, bias={}", weight.size(0), eps, bias.defined());
}

RMSNorm::RMSNorm(std::int64_t n, const RMSNormOptions& options)
    : weight(row_parameter("RMSNorm", n, 1, options)), eps(options.eps) {}

std::string RMSNorm::describe() const { return fmt::format("{}, eps={:g}", weight.size(0), eps); }

Dropout::Dropout(double probability) : p(probability) {
    check(p >= 0 && p <= 1, ErrorKind::value, "Dropout: p is ", p, "; it must be in [0, 1]");
}

std::string Dropout::describe() const { return fmt::format("p={}", p); }

Module& Sequential::operator[](std::size_t i) const {
    check(i < layers_.size(), ErrorKind::value, "Sequential: no module ", i, ", it has ", layers_.size());
    return layers_[i].module();
}

void Sequential::visit_fields(FieldVisitor& visitor) {
    for (std::size_t i = 0; i < layers_.size(); ++i) visitor.module(std::to_string(i), layers_[i].module());
}

void Sequential::own_copies(detail::OwnCopies& made) {
    for (AnyModule& layer : layers_) layer = layer.own_copy(made);
}

namespace {

// The module if it is exactly an M: a class derived from it may compute something else.
template <class M> const M* exactly(const Module& module) {
    return typeid(module) == typeid(M) ? static_cast<const M*>(&module) : nullptr;
}

LinearActivation fusable_activation(const Module& module) {
    if (module.has_hooks()) return LinearActivation::none;
    if (exactly<ReLU>(module) != nullptr) return LinearActivation::relu;
    if (const auto* gelu = exactly<GELU>(module))
        return gelu->approximate_tanh ? LinearActivation::gelu_tanh : LinearActivation::gelu;
    return LinearActivation::none;
}

}  // namespace

Tensor Sequential::operator()(const Tensor& input) const {
    return with_hooks([this](const Tensor& x) { return run(x); }, input);
}

Tensor Sequential::run(Tensor y) const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Module& layer = layers_[i].module();
        if (layer.has_hooks()) {
            y = layers_[i](y);
            continue;
        }
        const bool last = i + 1 == layers_.size();
        const LinearActivation activation =
            last ? LinearActivation::none : fusable_activation(layers_[i + 1].module());
        const ModuleScope here(layer);
        if (const auto* const dense = exactly<Linear>(layer)) {
            y = linear(y, dense->weight, dense->bias, activation);
            if (activation != LinearActivation::none) ++i;
        } else if (const auto* const norm = exactly<BatchNorm2d>(layer);
                   norm && activation == LinearActivation::relu) {
            y = (*norm)(y, {.relu = true});
            ++i;
        } else {
            y = layers_[i](y);
        }
    }
    return y;
}

}  // namespace mezzo::nn
