#include "text/tokenizer/characters.h"

#include <utf8proc.h>

#include <array>

namespace mezzo::data::tokenizer {

namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(utf8proc_int32_t(c)); }

bool is_letter(utf8proc_category_t c) { return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO; }
bool is_number(utf8proc_category_t c) { return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO; }

CharacterClass find_kind(char32_t c) {
    if (is_space(c)) return CharacterClass::space;
    const utf8proc_category_t of = category(c);
    return is_letter(of)   ? CharacterClass::letter
           : is_number(of) ? CharacterClass::number
                           : CharacterClass::other;
}

}  // namespace

CharacterClass kind(char32_t c) {
    static const std::array<CharacterClass, 128> ascii = [] {
        std::array<CharacterClass, 128> table;
        for (char32_t i = 0; i < 128; ++i) table[i] = find_kind(i);
        return table;
    }();
    return c < 128 ? ascii[c] : find_kind(c);
}

bool is_space(char32_t c) {
    return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool is_number(char32_t c) { return is_number(category(c)); }

bool is_word(char32_t c) {
    const utf8proc_category_t of = category(c);
    if (is_letter(of) || (of >= UTF8PROC_CATEGORY_MN && of <= UTF8PROC_CATEGORY_ME)) return true;
    if (of == UTF8PROC_CATEGORY_ND || of == UTF8PROC_CATEGORY_NL || of == UTF8PROC_CATEGORY_PC) return true;
    // Other_Alphabetic among the symbols: letters in circles and squares. Then the joiners.
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}

bool is_mark(char32_t c) {
    const utf8proc_category_t of = category(c);
    return of >= UTF8PROC_CATEGORY_MN && of <= UTF8PROC_CATEGORY_ME;
}

Decoded last_character(std::string_view text, std::size_t end) {
    std::size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    return decode_utf8(text.substr(begin, end - begin));
}

char32_t compose(char32_t first, char32_t second) {
    utf8proc_int32_t pair[3] = {utf8proc_int32_t(first), utf8proc_int32_t(second), 0};
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(pair, 2, utf8proc_option_t(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    return count == 1 ? char32_t(pair[0]) : 0;
}

std::size_t grapheme_end(std::string_view text) {
    Decoded before = first_character(text);
    std::size_t end = before.bytes;
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
        const Decoded next = first_character(text.substr(end));
        if (utf8proc_grapheme_break_stateful(utf8proc_int32_t(before.character),
                                             utf8proc_int32_t(next.character), &state))
            break;
        end += next.bytes;
        before = next;
    }
    return end;
}

}  // namespace mezzo::data::tokenizer
