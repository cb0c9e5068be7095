// The parts of Transformer layers: attention and feed-forward, each followed by a norm in one op
// (dropout_add_layer_norm), or with the parts called one by one where hooks want to see them.
#pragma once

#include <memory>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/transformer.h"

namespace mezzo::nn {

struct Sublayers {
    double dropout_p;
    bool training;

    Tensor dropped(const Tensor& x) const;
    // linear2(dropped(activation(linear1(x)))).
    Tensor feed_forward(const Linear& linear1, const Linear& linear2, LinearActivation activation,
                        const Tensor& x) const;
    // norm(x + dropped(attention(x, memory, memory))).
    Tensor attention_and_norm(const MultiheadAttention& attention, const LayerNorm& norm, const Tensor& x,
                              const Tensor& memory, const AttentionMasks& masks) const;
    // norm(x + dropped(feed_forward(x))).
    Tensor feed_forward_and_norm(const Linear& linear1, const Linear& linear2, LinearActivation activation,
                                 const LayerNorm& norm, const Tensor& x) const;

private:
    Tensor inner(const Linear& linear1, LinearActivation activation, const Tensor& x) const;
    Tensor linear_and_norm(const Linear& last, const LayerNorm& norm, const Tensor& x,
                           const Tensor& residual) const;
};

// The last of x = call(layer, {x, others...}) over the layers, for inputs {x, others...}. Checkpointed layers
// and `call` are copied, because backward runs them again.
template <class Layer, class Call>
Tensor through_layers(const std::vector<Layer>& layers, bool checkpointed, Tensors inputs, const Call& call) {
    for (const Layer& layer : layers) {
        if (!checkpointed) {
            inputs[0] = call(layer, inputs);
            continue;
        }
        const auto copy = std::make_shared<const Layer>(layer);
        const auto segment = [copy, call](const Tensors& in) { return Tensors{call(*copy, in)}; };
        inputs[0] = autograd::checkpoint(segment, inputs)[0];
    }
    return inputs[0];
}

}  // namespace mezzo::nn
