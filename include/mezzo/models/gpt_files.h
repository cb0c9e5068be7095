// Files of nn::Gpt and nn::Llama in Hugging Face's format: config.json, names of weights, whole folders.
//
//   const nn::AnyModule model = io::load_causal_lm("gpt2");  // folder with config.json, model.safetensors
//   y = model.as<nn::CausalLm>().next_logits(ids);
#pragma once

#include <string>
#include <string_view>

#include "mezzo/any_module.h"
#include "mezzo/models/gpt_config.h"

#pragma GCC visibility push(default)

namespace mezzo::io {

// Reads a config.json of model_type "gpt2" or "llama". Missing names get their defaults, unknown ones are
// ignored. Throws Error(io) for text that is not JSON, and Error(value) for values of a wrong type or range,
// and for models that the config does not describe: another model_type or activation, biases in Llama, scaled
// rotary positions, cross attention.
[[nodiscard]] nn::GptConfig parse_gpt_config(std::string_view text);
[[nodiscard]] nn::GptConfig load_gpt_config(const std::string& path);
[[nodiscard]] nn::LlamaConfig parse_llama_config(std::string_view text);
[[nodiscard]] nn::LlamaConfig load_llama_config(const std::string& path);
// The text of a config.json that the functions above and Python's transformers read. Throws Error(value) for
// a config that they would refuse.
[[nodiscard]] std::string to_json(const nn::GptConfig& config);
[[nodiscard]] std::string to_json(const nn::LlamaConfig& config);

// The name of a weight in nn::Gpt: names of the bare model (wte.weight, h.0…) get "transformer."; those of
// constant masks (h.0.attn.bias, h.0.attn.masked_bias) are empty. For load_weights(): {.rename =
// io::gpt_name}.
[[nodiscard]] std::string gpt_name(const std::string& name);
// The name of a weight in nn::Llama: names of the bare model (layers.0…) get "model."; tables of rotary
// positions (rotary_emb.inv_freq) have an empty one.
[[nodiscard]] std::string llama_name(const std::string& name);

// Loads an nn::Gpt or nn::Llama, in float32 and eval mode, from a folder with config.json and
// model.safetensors, or model.safetensors.index.json and the files that it lists. .as<nn::CausalLm>() of the
// result is the common interface of both. Throws Error(io) for files that are missing or damaged, and what
// parse_gpt_config(), parse_llama_config() and a strict load_weights() throw.
[[nodiscard]] nn::AnyModule load_causal_lm(const std::string& folder);

}  // namespace mezzo::io

#pragma GCC visibility pop
