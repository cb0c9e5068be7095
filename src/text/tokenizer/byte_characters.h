// Characters that represent bytes in byte-level tokenizers (Radford et al. 2019, encoder.py of GPT-2):
// visible characters of Latin-1 represent themselves, the other 68 bytes are U+0100 and on.
#pragma once

#include <string_view>

#include "text/tokenizer/text.h"

namespace mezzo::data::tokenizer {

char32_t byte_character(unsigned char byte);
int byte_of(char32_t character);  // -1: represents no byte

// Returns every byte as its character, with the source of the character that the byte belongs to.
Text to_byte_characters(const Text& text);
// Appends the bytes that the characters represent; a token with any other character is appended as it is.
void append_bytes(std::string& out, std::string_view token);

}  // namespace mezzo::data::tokenizer
