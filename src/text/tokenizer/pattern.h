// Patterns that Split, Replace and similar components search for in a text.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer/fields.h"
#include "text/tokenizer/text.h"

namespace mezzo::data::tokenizer {

class Pattern {
public:
    Pattern() = default;
    virtual ~Pattern() = default;
    Pattern(const Pattern&) = delete;
    Pattern& operator=(const Pattern&) = delete;
    // Finds the first match at or behind `from`, never an empty one; returns false if there is none.
    virtual bool find(std::string_view text, std::size_t from, TextRange& match) const = 0;
};

std::unique_ptr<Pattern> literal(std::string text);
std::unique_ptr<Pattern> each_of(bool (*belongs)(char32_t));  // matches one character

// The regular expression of GPT-2's ByteLevel (Radford et al. 2019).
std::unique_ptr<Pattern> gpt2_words();
// \w+|[^\w\s]+
std::unique_ptr<Pattern> word_runs();

// Reads a field {"String": text} or {"Regex": expression}. Expressions that are known by their text are
// matched by code; others need PCRE2. Throws Error(value) for an invalid expression.
std::unique_ptr<Pattern> read_pattern(Fields& owner, const char* key);

// Returns a pattern for an expression that is matched by code (table in known_patterns.cpp), or null.
std::unique_ptr<Pattern> known_expression(std::string_view expression);
// Returns a pattern for any expression, by PCRE2. Throws Error(value) in the name of `where` if it is invalid
// or can match an empty text, or if mezzo was built without PCRE2.
std::unique_ptr<Pattern> pcre2_expression(const std::string& expression, const std::string& where);

}  // namespace mezzo::data::tokenizer
