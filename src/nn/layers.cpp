// Layers with state of their own, and Sequential.
#include <cmath>

#include <fmt/format.h>

#include "mezzo/autograd.h"
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

namespace {

LinearActivation fusable_activation(const Module& module) {
    if (dynamic_cast<const ReLU*>(&module)) return LinearActivation::relu;
    if (const auto* gelu = dynamic_cast<const GELU*>(&module))
        return gelu->approximate_tanh ? LinearActivation::gelu_tanh : LinearActivation::gelu;
    return LinearActivation::none;
}

}  // namespace

Tensor Sequential::operator()(const Tensor& x) const {
    Tensor y = x;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const auto* dense = dynamic_cast<const Linear*>(&layers_[i].module());
        const LinearActivation activation = dense && i + 1 < layers_.size()
                                                ? fusable_activation(layers_[i + 1].module())
                                                : LinearActivation::none;
        if (activation == LinearActivation::none) {
            y = layers_[i](y);
        } else {
            y = linear(y, dense->weight, dense->bias, activation);
            ++i;
        }
    }
    return y;
}

}  // namespace mezzo::nn
