// Decoders: they convert the texts of tokens back to a text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "text/tokenizer/fields.h"

namespace mezzo::data::tokenizer {

// A step that rewrites the list of texts. After the last step the texts are joined.
using Decoder = std::function<void(std::vector<std::string>&)>;

// Reads the field "decoder" of tokenizer.json as steps that run one after the other; throws Error(value).
std::vector<Decoder> read_decoders(const Fields& component);

Decoder byte_level_decoder();
// Puts blanks between tokens, except before tokens that begin with the prefix. clean_up closes gaps as
// clean() does.
Decoder word_piece_decoder(std::string prefix, bool clean_up);

// Closes the gaps around punctuation and short forms in English text whose tokens were joined by blanks, by
// the list of clean_up_tokenization() of transformers.
std::string clean(std::string text);

}  // namespace mezzo::data::tokenizer
