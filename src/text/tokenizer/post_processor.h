// Post-processors: they add special tokens around the tokens of one or two texts.
#pragma once

#include <optional>
#include <vector>

#include "text/tokenizer/fields.h"

namespace mezzo::data::tokenizer {

// A part of the result: the tokens of a text, or special tokens.
struct TemplatePart {
    enum class Source : unsigned char { first, second, special } source = Source::first;
    std::int64_t type_id = 0;
    std::vector<std::int64_t> ids;  // special ones
};
using Template = std::vector<TemplatePart>;
// Returns how many special tokens the template adds.
std::int64_t added(const Template& parts);

// Templates of the result. The default, [first][second with type 1], is used without a post-processor.
struct PostProcessor {
    Template single{TemplatePart{}};
    Template pair{TemplatePart{}, TemplatePart{TemplatePart::Source::second, 1, {}}};
    // Removes white space from the offsets of byte-level tokens, except one blank at the beginning of a text,
    // which add_prefix_space may have added.
    bool trim_offsets = false, add_prefix_space = false;
};

// Reads the field "post_processor" of tokenizer.json; throws Error(value).
PostProcessor read_post_processor(const Fields& component);

// cls first sep, and cls first sep second sep with type 1 for the second and what follows it.
void set_bert(PostProcessor& processor, std::int64_t cls, std::int64_t sep);
// cls first sep, and cls first sep sep second sep; all types are 0.
void set_roberta(PostProcessor& processor, std::int64_t cls, std::int64_t sep);
// bos first eos, and bos first eos bos second eos with type 1 from the second bos on; bos and eos are
// optional.
void set_bos_eos(PostProcessor& processor, std::optional<std::int64_t> bos, std::optional<std::int64_t> eos);

}  // namespace mezzo::data::tokenizer
