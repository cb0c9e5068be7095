// NFC, NFD, NFKC and NFKD of texts that remember where they come from.
#include <algorithm>

#include "data/tokenizer/normalizer.h"

namespace mezzo::data::tokenizer {

namespace {

struct Part {
    char32_t character;
    int order;  // canonical combining class
    Place place;
};

// Puts marks that follow each other into the order of their combining classes.
void sort_marks(std::vector<Part>& parts) {
    for (std::size_t begin = 0; begin < parts.size(); ++begin) {
        if (parts[begin].order == 0) continue;
        std::size_t end = begin;
        while (end < parts.size() && parts[end].order != 0) ++end;
        std::stable_sort(parts.begin() + std::ptrdiff_t(begin), parts.begin() + std::ptrdiff_t(end),
                         [](const Part& a, const Part& b) { return a.order < b.order; });
        begin = end;
    }
}

// Joins each starter with what follows it where there is a composite: UAX #15, D117.
void compose_parts(std::vector<Part>& parts) {
    constexpr std::size_t none = std::size_t(-1);
    std::size_t kept = 0, starter = none;
    for (const Part& part : parts) {
        // Of the parts kept since the starter the last one has the highest class, so that it alone decides.
        const bool reaches = starter != none && (kept == starter + 1 || parts[kept - 1].order < part.order);
        const char32_t joint =
            reaches && part.character >= 0x80 ? compose(parts[starter].character, part.character) : 0;
        if (joint != 0) {
            Place& place = parts[starter].place;
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
    if (text.is_ascii()) return;  // is in every form
    std::vector<Part> parts;
    parts.reserve(text.size());
    const bool compatibility = form == Form::nfkc || form == Form::nfkd;
    each_character(text, [&](char32_t character, Range range) {
        const Place place = text.place(range);
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
    for (const Part& part : parts) result.append(part.character, part.place);
    text = std::move(result);
}

}  // namespace mezzo::data::tokenizer
