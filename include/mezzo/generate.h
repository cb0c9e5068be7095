// Continuing texts with a language model: greedy, or sampled with temperature, top-k and top-p.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/causal_lm.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// How one token is chosen from its logits. The steps are made in this order, each on what the one before has
// left.
struct SamplingOptions {
    // Logits of tokens that the text has already are divided by it if positive, else multiplied (Keskar et
    // al., arXiv 1909.05858, section 4.1); > 0.
    double repetition_penalty = 1;
    double temperature =
        1;  // logits are divided by it; 0: always the likeliest token, of equal ones the first
    std::int64_t top_k = 0;  // only the k likeliest tokens (Fan et al., arXiv 1805.04833); 0: all
    // Only the likeliest tokens that together have at least this probability (Holtzman et al., arXiv
    // 1904.09751); in (0, 1].
    double top_p = 1;
};

// Where a random number is drawn from: of equal seed, row and step the same, on every machine.
struct SamplingPlace {
    std::uint64_t seed = 0;
    std::uint64_t row = 0, step = 0;
};

// A token chosen from float32 logits, one for each of the vocabulary; `text` is what stands before it. Throws
// Error(value) for options out of range, for logits that are NaN or +infinity, and where all are -infinity.
[[nodiscard]] std::int64_t sample_token(const std::vector<float>& logits,
                                        const std::vector<std::int64_t>& text, const SamplingOptions& options,
                                        const SamplingPlace& place = {});

// A token that has just been chosen for a text; false ends the generation of all texts.
using OnToken = autograd::Callback<bool(std::size_t text, std::int64_t token)>;

struct GenerateOptions {
    std::int64_t max_new_tokens = 64;  // not negative
    SamplingOptions sampling = {};
    std::uint64_t seed = 0;
    std::optional<std::int64_t> eos_token_id = {};  // ends a text, and is its last token
    bool cache = true;                              // false: computes the whole text for each token
    OnToken on_token = [](std::size_t, std::int64_t) { return true; };
};

// Each prompt and what follows it. Prompts of different lengths are padded on the left and computed as one
// batch. A text depends on its prompt, its row and the seed, not on how many threads compute or whether there
// is a cache, as far as the logits do not differ by rounding. The model computes in its own dtype, or that of
// an open Autocast scope; nothing is recorded. Throws Error(value) for options out of range, for no prompts,
// an empty one, and texts longer than the model's max_length(), before anything is computed; Error(state) for
// a model that is not in eval mode, where dropout would change the texts.
[[nodiscard]] std::vector<std::vector<std::int64_t>> generate(
    const CausalLm& model, const std::vector<std::vector<std::int64_t>>& prompts,
    const GenerateOptions& options = {});

}  // namespace mezzo::nn

#pragma GCC visibility pop
