#include "text/unicode.h"

#include <utf8proc.h>

namespace mezzo::data {

Decoded decode_utf8(std::string_view text) {
    utf8proc_int32_t character = -1;
    const utf8proc_ssize_t bytes =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                         utf8proc_ssize_t(text.size() < 4 ? text.size() : 4), &character);
    if (bytes <= 0) return {replacement_character, 1};
    return {char32_t(character), std::size_t(bytes)};
}

void append_utf8(std::string& text, char32_t character) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t count = utf8proc_encode_char(utf8proc_int32_t(character), bytes);
    text.append(reinterpret_cast<const char*>(bytes), std::size_t(count));
}

bool is_valid_utf8(std::string_view text) {
    while (!text.empty()) {
        const Decoded next = decode_utf8(text);
        if (next.character == replacement_character && next.bytes == 1) return false;
        text.remove_prefix(next.bytes);
    }
    return true;
}

static bool is_ideograph(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B820 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

CharacterKind kind_of(char32_t character) {
    if (character == '\t' || character == '\n' || character == '\r') return CharacterKind::space;
    if (character == replacement_character) return CharacterKind::dropped;
    switch (utf8proc_category(utf8proc_int32_t(character))) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CO:
            return CharacterKind::dropped;
        case UTF8PROC_CATEGORY_ZS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
            return CharacterKind::space;
        default:
            return is_ideograph(character) ? CharacterKind::ideograph : CharacterKind::other;
    }
}

bool is_punctuation(char32_t c) {
    if (c < 0x80)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    const utf8proc_category_t category = utf8proc_category(utf8proc_int32_t(c));
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_nonspacing_mark(char32_t character) {
    return utf8proc_category(utf8proc_int32_t(character)) == UTF8PROC_CATEGORY_MN;
}

int combining_class(char32_t character) {
    return utf8proc_get_property(utf8proc_int32_t(character))->combining_class;
}

int decompose(char32_t character, bool compatibility, char32_t* to) {
    const auto options =
        utf8proc_option_t(UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE));
    utf8proc_int32_t parts[max_parts];
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(utf8proc_int32_t(character), parts, max_parts, options, &boundary);
    if (count < 1 || count > max_parts) {
        to[0] = character;
        return 1;
    }
    for (int i = 0; i < int(count); ++i) to[i] = char32_t(parts[i]);
    return int(count);
}

char32_t to_lower(char32_t character) { return char32_t(utf8proc_tolower(utf8proc_int32_t(character))); }

}  // namespace mezzo::data
