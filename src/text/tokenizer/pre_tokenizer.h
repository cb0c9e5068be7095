// Pre-tokenizers: they split a normalised text into pieces, each of which the model converts to tokens
// separately.
#pragma once

#include <memory>
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
class PreTokenizer {
public:
    PreTokenizer() = default;
    virtual ~PreTokenizer() = default;
    PreTokenizer(const PreTokenizer&) = delete;
    PreTokenizer& operator=(const PreTokenizer&) = delete;
    virtual void apply(Pieces& pieces) const = 0;
};
using PreTokenizers = std::vector<std::unique_ptr<PreTokenizer>>;

// Reads the field "pre_tokenizer" of tokenizer.json as steps that run one after the other; throws
// Error(value).
PreTokenizers read_pre_tokenizers(const Fields& component);

}  // namespace mezzo::data::tokenizer
