// Patterns that Split, Replace and similar components search for in a text.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "text/tokenizer/fields.h"
#include "text/tokenizer/text.h"

namespace mezzo::data::tokenizer {

// Finds the first match at or behind `from`, never an empty one; returns false if there is none.
using Pattern = std::function<bool(const std::string_view& text, std::size_t from, TextRange& match)>;

Pattern literal(std::string text);
Pattern each_of(bool (*belongs)(char32_t));  // matches one character

// The regular expression of GPT-2's ByteLevel (Radford et al. 2019).
Pattern gpt2_words();
// \w+|[^\w\s]+
Pattern word_runs();

// Reads a field {"String": text} or {"Regex": expression}. Expressions that are known by their text are
// matched by code; others need PCRE2. Throws Error(value) for an invalid expression.
Pattern read_pattern(Fields& owner, const char* key);

// Returns a pattern for an expression that is matched by code (table in known_patterns.cpp), or an empty one.
Pattern known_expression(std::string_view expression);
// Returns a pattern for any expression, by PCRE2. Throws Error(value) in the name of `where` if it is invalid
// or can match an empty text, or if mezzo was built without PCRE2.
Pattern pcre2_expression(const std::string& expression, const std::string& where);

}  // namespace mezzo::data::tokenizer
