// Trains a language model on a text.
#pragma once

#include <memory>

#include "gpt/options.h"
#include "gpt/texts.h"

namespace gpt {

std::unique_ptr<mezzo::nn::CausalLm> make_model(const Options& options, std::int64_t vocab_size);

mezzo::amp::AutocastOptions autocast(const Options& options);

// Returns false if a signal has stopped it.
bool train(const Options& options, const mezzo::distributed::Group& group, const Texts& texts,
           mezzo::nn::CausalLm& model);

// Writes config.json, model.safetensors and the vocabulary's tokenizer.json, which --model and Python's
// transformers can load.
void save_model(const std::string& folder, const mezzo::nn::CausalLm& model, const Vocabulary& vocabulary);

}  // namespace gpt
