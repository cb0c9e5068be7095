// Text generation with a language model: greedy, or sampled with temperature, top-k and top-p.
//
//   const data::Tokenizer tokenizer("gpt2");  // a folder of Hugging Face's files
//   const nn::AnyModule model = io::load_causal_lm("gpt2");
//   const auto texts = nn::generate(model.as<nn::CausalLm>(), {tokenizer.encode("Once upon").ids},
//                                   {.sampling = {.temperature = 0.8, .top_k = 40}});
//   std::cout << tokenizer.decode(texts[0]) << '\n';
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/models/causal_lm.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Options for choosing a token from its logits. They are applied in this order, each to the result of the one
// before.
struct SamplingOptions {
    // Logits of tokens that occur in the text are divided by it if positive, else multiplied (Keskar et al.,
    // arXiv 1909.05858, section 4.1); > 0.
    double repetition_penalty = 1;
    // logits are divided by it; 0: always the likeliest token, of equal ones the first
    double temperature = 1;
    std::int64_t top_k = 0;  // only the k likeliest tokens (Fan et al., arXiv 1805.04833); 0: all
    // Only the likeliest tokens that together have at least this probability (Holtzman et al., arXiv
    // 1904.09751); in (0, 1].
    double top_p = 1;
};

// Key of a random number: equal seed, row and step give the same number on every machine.
struct SamplingPosition {
    std::uint64_t seed = 0;
    std::uint64_t row = 0, step = 0;
};

// Chooses a token from float32 logits, one for each token of the vocabulary; `text` holds the tokens before
// it. Throws Error(value) for options out of range, for logits that are NaN or +infinity, and where all are
// -infinity.
[[nodiscard]] std::int64_t sample_token(const std::vector<float>& logits,
                                        const std::vector<std::int64_t>& text, const SamplingOptions& options,
                                        const SamplingPosition& position = {});

// Called with each token that is chosen, and the index of its text; returning false ends the generation of
// all texts.
using OnToken = autograd::Callback<bool(std::size_t text, std::int64_t token)>;

struct GenerateOptions {
    std::int64_t max_new_tokens = 64;  // not negative
    SamplingOptions sampling = {};
    std::uint64_t seed = 0;
    std::optional<std::int64_t> eos_token_id = {};  // in the vocabulary; ends a text, as its last token
    bool cache = true;                              // false: computes the whole text for each token
    bool pack_weights = true;  // opens an InferenceMode: faster on the CPU, with a second copy of the weights
    OnToken on_token = [](std::size_t, std::int64_t) { return true; };
};

// Returns each prompt with its continuation. Prompts of different lengths are padded on the left and computed
// as one batch. A text depends on its prompt, its row and the seed, and not on the number of threads or the
// use of the cache, except for rounding of the logits. The model computes in its own dtype, or that of an
// open Autocast scope; no gradients are recorded. Before it computes, it throws Error(value) for options out
// of range, for no prompts, an empty prompt, and texts longer than the model's max_length(), and Error(state)
// for a model that is not in eval mode, because dropout would change the texts.
[[nodiscard]] std::vector<std::vector<std::int64_t>> generate(
    const CausalLm& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options = {});

}  // namespace mezzo::nn

#pragma GCC visibility pop
