// Post-processors: they put special tokens around the tokens of one text or two.
#pragma once

#include <optional>
#include <vector>

#include "data/tokenizer/fields.h"

namespace mezzo::data::tokenizer {

// A part of the result: the tokens of a text, or special ones.
struct TemplatePart {
    enum class Source : unsigned char { first, second, special } source = Source::first;
    std::int64_t type_id = 0;
    std::vector<std::int64_t> ids;  // special ones
};
using Template = std::vector<TemplatePart>;
// How many special tokens it adds.
std::int64_t added(const Template& parts);

// [first][second with type 1]: what there is without a post-processor.
struct PostProcessor {
    Template single{TemplatePart{}};
    Template pair{TemplatePart{}, TemplatePart{TemplatePart::Source::second, 1, {}}};
    // Takes white space off the offsets of byte-level tokens, but for one blank at the begin of a text, where
    // add_prefix_space may have put it.
    bool trim_offsets = false, add_prefix_space = false;
};

// The field "post_processor" of tokenizer.json; throws Error(value).
PostProcessor read_post_processor(const Fields& component);

// cls first sep, and cls first sep second sep with type 1 for the second and what follows it.
void set_bert(PostProcessor& processor, std::int64_t cls, std::int64_t sep);
// cls first sep, and cls first sep sep second sep; all types are 0.
void set_roberta(PostProcessor& processor, std::int64_t cls, std::int64_t sep);
// bos first eos, and bos first eos bos second eos with type 1 from the second bos on; each where it is given.
void set_bos_eos(PostProcessor& processor, std::optional<std::int64_t> bos, std::optional<std::int64_t> eos);

}  // namespace mezzo::data::tokenizer
