// Character classes that tokenizers' rules use.
#pragma once

#include <string_view>

#include "text/unicode.h"

namespace mezzo::data::tokenizer {

// The classes \p{L}, \p{N} and \s of regular expressions; `other` is none of them.
enum class CharacterClass : unsigned char { letter, number, space, other };
CharacterClass kind(char32_t character);

bool is_space(char32_t character);   // the property White_Space, as \s
bool is_number(char32_t character);  // \p{N}: categories Nd, Nl and No
bool is_word(char32_t character);    // \w: Alphabetic, M, Nd, Pc and Join_Control (UTS #18, annex C)
bool is_mark(char32_t character);    // \p{M}

// decode_utf8() with a fast path for ASCII. The text must not be empty.
inline Decoded first_character(std::string_view text) {
    const auto byte = static_cast<unsigned char>(text[0]);
    return byte < 0x80 ? Decoded{byte, 1} : decode_utf8(text);
}
// Returns the character that ends at `end`, which must be above 0.
Decoded last_character(std::string_view text, std::size_t end);

// Returns the primary composite of two characters (Unicode Standard Annex #15), or 0 if there is none.
char32_t compose(char32_t first, char32_t second);

// Returns the end of the grapheme cluster at the front of a text that is not empty (UAX #29).
std::size_t grapheme_end(std::string_view text);

}  // namespace mezzo::data::tokenizer
