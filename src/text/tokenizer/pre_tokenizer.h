// Pre-tokenizers: they split a normalised text into pieces, each of which the model converts to tokens
// separately.
#pragma once

#include <functional>
#include <vector>

#include "text/tokenizer/fields.h"
#include "text/tokenizer/text.h"

namespace mezzo::data::tokenizer {

// Pieces of a text in order; none is empty. Text outside of all pieces has been removed.
struct Pieces {
    Text text;
    std::vector<TextRange> ranges;
};

// Splits pieces into smaller ones, or rewrites them.
using PreTokenizer = std::function<void(Pieces&)>;
using PreTokenizers = std::vector<PreTokenizer>;

// Reads the field "pre_tokenizer" of tokenizer.json as steps that run one after the other; throws
// Error(value).
PreTokenizers read_pre_tokenizers(const Fields& component);

}  // namespace mezzo::data::tokenizer
