// Tiny language models with the weights of tools/reference_causal.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/models/gpt.h"
#include "mezzo/models/llama.h"

namespace mezzo::test {

inline nn::GptConfig tiny_gpt() {
    return {.vocab_size = 23,
            .n_positions = 16,
            .n_embd = 32,
            .n_layer = 2,
            .n_head = 4,
            .resid_pdrop = 0,
            .embd_pdrop = 0,
            .attn_pdrop = 0};
}

inline nn::LlamaConfig tiny_llama() {
    return {.vocab_size = 23,
            .max_position_embeddings = 16,
            .hidden_size = 32,
            .intermediate_size = 48,
            .num_hidden_layers = 2,
            .num_attention_heads = 4,
            .num_key_value_heads = 2};
}

// Parameters by name, in the order of the names and in the layout of files.
inline StateDict sorted_state(const nn::Module& model) {
    StateDict state = model.state_dict();
    std::sort(state.begin(), state.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return state;
}

// Numbers in [-1, 1) that look random, exact in float32.
inline std::vector<double> mixed(std::int64_t count, std::uint64_t k) {
    std::vector<double> result;
    for (std::uint64_t i = 0; i < std::uint64_t(count); ++i) {
        std::uint64_t v = (i * 1103515245 + 12345 * k + 7) & 0xffffffff;
        v = ((v ^ (v >> 13)) * 1274126177) & 0xffffffff;
        v ^= v >> 16;
        result.push_back(double(v & 0xffffff) / (1 << 23) - 1);
    }
    return result;
}

inline void fill(const nn::Module& model) {
    const NoGrad plain;
    std::uint64_t k = 0;
    for (const auto& [name, value] : sorted_state(model)) {
        std::vector<double> values = mixed(value.numel(), k++);
        for (double& x : values) x = value.dim() == 2 ? x / 4 : 1 + x / 4;
        value.copy_(Tensor::from(values, value.shape()));
    }
}

template <class Model, class Config> Model filled(const Config& config, Dtype dtype, Device device) {
    Model model(config);
    model.to(dtype);
    fill(model);
    model.to(device);
    model.eval();
    return model;
}
inline nn::Gpt filled_gpt(Dtype dtype = float32, Device device = cpu_device) {
    return filled<nn::Gpt>(tiny_gpt(), dtype, device);
}
inline nn::Llama filled_llama(Dtype dtype = float32, Device device = cpu_device) {
    return filled<nn::Llama>(tiny_llama(), dtype, device);
}
// One model of each kind.
inline std::vector<std::unique_ptr<nn::CausalLm>> filled_models(Dtype dtype = float32,
                                                                Device device = cpu_device) {
    std::vector<std::unique_ptr<nn::CausalLm>> models;
    models.push_back(std::make_unique<nn::Gpt>(filled_gpt(dtype, device)));
    models.push_back(std::make_unique<nn::Llama>(filled_llama(dtype, device)));
    return models;
}

}  // namespace mezzo::test
