// Decoders: they turn the texts of tokens back into a text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer/fields.h"

namespace mezzo::data::tokenizer {

// Each step rewrites the list of texts; in the end they are joined.
using Decoder = std::function<void(std::vector<std::string>&)>;

// The field "decoder" of tokenizer.json as steps that run one after the other; throws Error(value).
std::vector<Decoder> read_decoders(const Fields& component);

Decoder byte_level_decoder();
// Tokens with blanks between them, but for those that begin with the prefix. clean_up closes gaps as clean()
// does.
Decoder word_piece_decoder(std::string prefix, bool clean_up);

// Closes the gaps that English text has around signs and short forms when tokens are joined by blanks, by the
// list of clean_up_tokenization() of transformers.
std::string clean(std::string text);

}  // namespace mezzo::data::tokenizer
