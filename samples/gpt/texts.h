// Training texts as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <mezzo/mezzo.h>

#include "gpt/options.h"
#include "gpt/vocabulary.h"

namespace gpt {

using Tokens = std::vector<std::int64_t>;

struct Texts {
    Vocabulary vocabulary;
    Tokens train, validation;
    std::size_t train_bytes = 0, validation_bytes = 0;
    std::string digest;  // of texts and vocabulary
};

// Reads the files, or the licences of this machine; the last tenth of each is for validation. Throws
// std::runtime_error unless both parts have more than options.context tokens.
Texts read_texts(const Options& options);

struct Pieces {
    mezzo::Tensor input, target;  // int64 [rows, context]; each target is the next input
    double weight = 1;            // of this rank's mean
};
// Returns this rank's rows of pieces at random positions, which depend only on seed and step.
Pieces draw_pieces(const Tokens& text, std::int64_t rows, std::int64_t context, std::uint64_t seed,
                   std::int64_t step, const mezzo::data::Shard& rank);
// Returns up to `rows` pieces, evenly spread over the text.
Pieces spread_pieces(const Tokens& text, std::int64_t rows, std::int64_t context);

}  // namespace gpt
