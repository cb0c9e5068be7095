// Layers with state of their own, and Sequential.
#include <cmath>
#include <typeinfo>

#include <fmt/format.h>

#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "mezzo/nn.h"

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
    return fmt::format("in_features={}, out_features={}, bias={}", weight.size(1), weight.size(0),
                       bias.defined());
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
}

std::string Embedding::describe() const {
    const std::string sizes =
        fmt::format("num_embeddings={}, embedding_dim={}", weight.size(0), weight.size(1));
    return padding_idx < 0 ? sizes : sizes + fmt::format(", padding_idx={}", padding_idx);
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

LinearActivation fusable_activation(const Module& module) {
    if (dynamic_cast<const ReLU*>(&module)) return LinearActivation::relu;
    if (const auto* gelu = dynamic_cast<const GELU*>(&module))
        return gelu->approximate_tanh ? LinearActivation::gelu_tanh : LinearActivation::gelu;
    return LinearActivation::none;
}

// The module if it is exactly an M: a class derived from it may compute something else.
template <class M> const M* exactly(const Module& module) {
    return typeid(module) == typeid(M) ? static_cast<const M*>(&module) : nullptr;
}

}  // namespace

Tensor Sequential::operator()(const Tensor& x) const {
    Tensor y = x;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const bool last = i + 1 == layers_.size();
        const LinearActivation activation =
            last ? LinearActivation::none : fusable_activation(layers_[i + 1].module());
        const Module& layer = layers_[i].module();
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
