// Code shared by nn::Gpt and nn::Llama.
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/models/causal_lm.h"
#include "mezzo/models/gpt_config.h"
#include "mezzo/ops.h"

namespace mezzo::nn {

// Positions of the tokens of a call, and its mask and cache.
struct CausalPlaces {
    std::int64_t first = 0;     // position of the first token without padding
    Tensor positions = {};      // int64 [batch, length] with padding
    Tensor mask = {};           // boolean [batch, 1, 1, keys]: true but for padding; undefined without
    Tensor cos = {}, sin = {};  // of the angles of the positions, for models with rotary embeddings
    KeyValueCache* cache = nullptr;
};

// Checks ids and inputs for a model of that name, and begins a call of the cache.
CausalPlaces places_of(const char* model, const Tensor& ids, const CausalInputs& inputs,
                       std::int64_t max_length);

// Attention of q [batch, heads, length, dim] with k and v, which may have fewer heads, and with the layer's
// cached keys and values; the result has concatenated heads, [batch, length, heads * dim].
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const CausalPlaces& places,
                        std::size_t layer, const AttentionOptions& options);

// Passes x through all layers; with `checkpointed`, backward computes the values inside of each layer again.
template <class Layer> Tensor through_layers(const std::vector<Layer>& layers, Tensor x,
                                             const CausalPlaces& places, bool checkpointed) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
        if (!checkpointed) {
            x = layers[i](x, places, i);
            continue;
        }
        const auto segment = [layer = layers[i], places, i](const Tensors& in) {
            return Tensors{layer(in[0], places, i)};
        };
        x = autograd::checkpoint(segment, {x})[0];
    }
    return x;
}

// The config if its sizes fit together, else Error(value).
const GptConfig& checked(const GptConfig& config);
const LlamaConfig& checked(const LlamaConfig& config);
std::int64_t key_value_heads(const LlamaConfig& config);
std::int64_t head_dim(const LlamaConfig& config);

}  // namespace mezzo::nn
