// The characters by which byte-level tokenizers write bytes (Radford et al. 2019, encoder.py of GPT-2): those
// of Latin-1 that are visible stand for themselves, the other 68 bytes are U+0100 and on.
#pragma once

#include <string_view>

#include "data/tokenizer/text.h"

namespace mezzo::data::tokenizer {

char32_t byte_character(unsigned char byte);
int byte_of(char32_t character);  // -1: stands for no byte

// Every byte as its character, at the place of the character that it was part of.
Text to_byte_characters(const Text& text);
// Appends the bytes of the characters; a token with a character that stands for none is appended as it is.
void append_bytes(std::string& out, std::string_view token);

}  // namespace mezzo::data::tokenizer
