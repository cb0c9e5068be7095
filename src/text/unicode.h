// Unicode properties of characters that the tokenizer needs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mezzo::data {

inline constexpr char32_t replacement_character = 0xFFFD;

struct Decoded {
    char32_t character;
    std::size_t bytes;
};
// Decodes the first character of a text that is not empty; replacement_character and 1 byte if the text does
// not begin with valid UTF-8.
Decoded decode_utf8(std::string_view text);
void append_utf8(std::string& text, char32_t character);
bool is_valid_utf8(std::string_view text);

enum class CharacterKind : unsigned char { dropped, space, ideograph, other };
// dropped: U+0000, U+FFFD, control (Cc), format (Cf) and private-use (Co) characters except tab, line feed
// and carriage return. space: these three and the separators (Zs, Zl, Zp). ideograph: the blocks of CJK
// unified and compatibility ideographs that BERT lists, which are without kana and Hangul.
CharacterKind kind_of(char32_t character);
// Categories P*, and all ASCII characters that are neither letters, digits, spaces nor control characters.
bool is_punctuation(char32_t character);
bool is_nonspacing_mark(char32_t character);  // category Mn

int combining_class(char32_t character);
// Writes the full decomposition, canonical or for compatibility: at most max_parts characters. Returns how
// many.
inline constexpr int max_parts = 32;
int decompose(char32_t character, bool compatibility, char32_t* to);
// Simple lower-case mapping, from one character to one.
char32_t to_lower(char32_t character);

}  // namespace mezzo::data
