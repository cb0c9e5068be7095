#include "data/tokenizer/text.h"

#include <algorithm>

namespace mezzo::data::tokenizer {

Text::Text(std::string_view given) {
    reserve(given.size());
    for (std::size_t at = 0; at < given.size();) {
        const Decoded next = first_character(given.substr(at));
        const Place place{std::uint32_t(at), std::uint32_t(at + next.bytes)};
        if (next.character == replacement_character)
            append(replacement_character, place);
        else
            append(given.substr(at, next.bytes), place);
        at += next.bytes;
    }
}

bool Text::is_ascii() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace mezzo::data::tokenizer
