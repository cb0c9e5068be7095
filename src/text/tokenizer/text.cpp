#include "text/tokenizer/text.h"

#include <algorithm>

#include "mezzo/error.h"

namespace mezzo::data::tokenizer {

Text::Text(std::string_view given) {
    reserve(given.size());
    for (std::size_t at = 0; at < given.size();) {
        const Decoded next = first_character(given.substr(at));
        const SourceRange place{std::uint32_t(at), std::uint32_t(at + next.bytes)};
        if (next.character == replacement_character)
            append(replacement_character, place);
        else
            append(given.substr(at, next.bytes), place);
        at += next.bytes;
    }
}

void check_growth(const Text& text, std::size_t bytes) {
    if (text.empty()) return;
    bytes = std::max(bytes, text.size());
    const SourceRange place = text.place({0, text.size()});
    const std::size_t given = place.end - place.begin;
    check(bytes <= 1024 + 64 * given, ErrorKind::value, "encode: the tokenizer's normalizers make more than ",
          1024 + 64 * given, " bytes of ", given, " bytes of text");
}

bool Text::is_ascii() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace mezzo::data::tokenizer
