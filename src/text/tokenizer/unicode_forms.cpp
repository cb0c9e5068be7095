// NFC, NFD, NFKC and NFKD of texts that record the source of each byte.
#include <algorithm>

#include "text/tokenizer/normalizer.h"

namespace mezzo::data::tokenizer {

namespace {

struct FormCharacter {
    char32_t character;
    int order;  // canonical combining class
    SourceRange place;
};

// Sorts consecutive marks by their combining classes.
void sort_marks(std::vector<FormCharacter>& parts) {
    for (std::size_t begin = 0; begin < parts.size(); ++begin) {
        if (parts[begin].order == 0) continue;
        std::size_t end = begin;
        while (end < parts.size() && parts[end].order != 0) ++end;
        std::stable_sort(parts.begin() + std::ptrdiff_t(begin), parts.begin() + std::ptrdiff_t(end),
                         [](const FormCharacter& a, const FormCharacter& b) { return a.order < b.order; });
        begin = end;
    }
}

// Joins each starter with a following character if there is a composite: UAX #15, D117.
void compose_parts(std::vector<FormCharacter>& parts) {
    constexpr std::size_t none = std::size_t(-1);
    std::size_t kept = 0, starter = none;
    for (const FormCharacter& part : parts) {
        // Only the last part since the starter matters, as it has the highest class.
        const bool reaches = starter != none && (kept == starter + 1 || parts[kept - 1].order < part.order);
        const char32_t joint =
            reaches && part.character >= 0x80 ? compose(parts[starter].character, part.character) : 0;
        if (joint != 0) {
            SourceRange& place = parts[starter].place;
            parts[starter].character = joint;
            place = {std::min(place.begin, part.place.begin), std::max(place.end, part.place.end)};
            continue;
        }
        if (part.order == 0) starter = kept;
        parts[kept++] = part;
    }
    parts.resize(kept);
}

}  // namespace

void normalize(Text& text, Form form) {
    if (text.is_ascii()) return;  // ASCII is in every form
    std::vector<FormCharacter> parts;
    parts.reserve(text.size());
    const bool compatibility = form == Form::nfkc || form == Form::nfkd;
    each_character(text, [&](char32_t character, TextRange range) {
        const SourceRange place = text.place(range);
        if (character < 0x80) {
            parts.push_back({character, 0, place});
            return;
        }
        char32_t to[max_parts];
        const int count = decompose(character, compatibility, to);
        for (int i = 0; i < count; ++i) parts.push_back({to[i], combining_class(to[i]), place});
    });
    sort_marks(parts);
    if (form == Form::nfc || form == Form::nfkc) compose_parts(parts);
    Text result;
    result.reserve(text.size());
    for (const FormCharacter& part : parts) result.append(part.character, part.place);
    text = std::move(result);
}

}  // namespace mezzo::data::tokenizer
