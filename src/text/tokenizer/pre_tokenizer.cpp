#include "text/tokenizer/pre_tokenizer.h"

#include "text/tokenizer/byte_characters.h"
#include "text/tokenizer/pattern.h"

namespace mezzo::data::tokenizer {

namespace {

// Treatment of the matches of a pattern.
enum class Behavior : unsigned char { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Match {
    TextRange range;
    bool match;
};

// Lists the matches and the text between them, in order.
void find_parts(std::string_view text, const Pattern& pattern, bool invert, std::vector<Match>& parts) {
    parts.clear();
    std::size_t at = 0;
    for (TextRange match{}; at < text.size() && pattern(text, at, match); at = match.end) {
        if (match.begin > at) parts.push_back({{at, match.begin}, invert});
        parts.push_back({match, !invert});
    }
    if (at < text.size()) parts.push_back({{at, text.size()}, invert});
}

// Whether a part goes into the same piece as the part before it.
bool joins(Behavior behavior, const Match& before, const Match& part) {
    switch (behavior) {
        case Behavior::removed:
        case Behavior::isolated:
            return false;
        case Behavior::merged_with_previous:
            return part.match && !before.match;
        case Behavior::merged_with_next:
            return before.match && !part.match;
        case Behavior::contiguous:
            return before.match == part.match;
    }
    return false;
}

void split(Pieces& pieces, const Pattern& pattern, Behavior behavior, bool invert) {
    std::vector<TextRange> ranges;
    ranges.reserve(pieces.ranges.size());
    std::vector<Match> parts;
    const std::string_view text = pieces.text.bytes();
    for (const TextRange piece : pieces.ranges) {
        find_parts(text.substr(piece.begin, piece.end - piece.begin), pattern, invert, parts);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const TextRange range{piece.begin + parts[i].range.begin, piece.begin + parts[i].range.end};
            if (behavior == Behavior::removed && parts[i].match) continue;
            if (i > 0 && joins(behavior, parts[i - 1], parts[i]))
                ranges.back().end = range.end;
            else
                ranges.push_back(range);
        }
    }
    pieces.ranges = std::move(ranges);
}

// Replaces each piece by what rewrite(text, piece, out) appends to `out`.
template <class Rewrite> void rewrite_each(Pieces& pieces, const Rewrite& rewrite) {
    Pieces result;
    result.text.reserve(pieces.text.size() + 4 * pieces.ranges.size());
    result.ranges.reserve(pieces.ranges.size());
    for (const TextRange piece : pieces.ranges) {
        const std::size_t begin = result.text.size();
        rewrite(pieces.text, piece, result.text);
        result.ranges.push_back({begin, result.text.size()});
    }
    pieces = std::move(result);
}

// Returns the source of text that is inserted before a piece: that of the piece's first character.
SourceRange first_place(const Text& text, TextRange piece) {
    const std::size_t bytes = first_character(std::string_view(text.bytes()).substr(piece.begin)).bytes;
    return text.place({piece.begin, piece.begin + bytes});
}

void add_blanks_in_front(Pieces& pieces) {
    rewrite_each(pieces, [](const Text& text, TextRange piece, Text& out) {
        if (text.bytes()[piece.begin] != ' ') out.append(std::string_view(" "), first_place(text, piece));
        out.append(text, piece);
    });
}

void use_byte_characters(Pieces& pieces) {
    const std::string_view bytes = pieces.text.bytes();
    std::size_t at = 0, to = 0;  // a byte at `at` becomes a character at `to`
    const auto advance = [&](std::size_t end) {
        for (; at < end; ++at) to += byte_character(static_cast<unsigned char>(bytes[at])) < 0x80 ? 1 : 2;
        return to;
    };
    for (TextRange& range : pieces.ranges) {
        const std::size_t begin = advance(range.begin);
        range = {begin, advance(range.end)};
    }
    pieces.text = to_byte_characters(pieces.text);
}

// When Metaspace puts its sign before a piece.
enum class Prepend : unsigned char { always, first, never };

void metaspace(Pieces& pieces, const std::string& sign, Prepend prepend) {
    rewrite_each(pieces, [&](const Text& text, TextRange piece, Text& out) {
        const std::string_view bytes = std::string_view(text.bytes()).substr(0, piece.end);
        const bool has_one = bytes[piece.begin] == ' ' || bytes.substr(piece.begin).starts_with(sign);
        const bool wanted =
            prepend == Prepend::always ||
            (prepend == Prepend::first && text.place({piece.begin, piece.begin + 1}).begin == 0);
        if (wanted && !has_one) out.append(sign, first_place(text, piece));
        for (std::size_t at = piece.begin; at < piece.end;) {
            const std::size_t blank = std::min(bytes.find(' ', at), piece.end);
            if (blank > at) out.append(text, {at, blank});
            if (blank < piece.end) out.append(sign, text.place({blank, blank + 1}));
            at = blank + 1;
        }
    });
}

Behavior read_behavior(Fields& fields, const char* fallback) {
    const std::string name = fields.text("behavior", fallback);
    if (name == "Removed") return Behavior::removed;
    if (name == "Isolated") return Behavior::isolated;
    if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
    if (name == "MergedWithNext") return Behavior::merged_with_next;
    if (name == "Contiguous") return Behavior::contiguous;
    fields.refuse("has the behavior " + io::shown(name) +
                  "; Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous are known");
}

Prepend read_prepend_scheme(Fields& fields) {
    const std::string name = fields.text("prepend_scheme", "always");
    const bool prefix = fields.flag("add_prefix_space", true);  // used in older files
    if (name != "always" && name != "first" && name != "never")
        fields.refuse("has the prepend_scheme " + io::shown(name) + "; always, first and never are known");
    return !prefix || name == "never" ? Prepend::never : name == "first" ? Prepend::first : Prepend::always;
}

void add_split(PreTokenizers& steps, Pattern pattern, Behavior behavior, bool invert = false) {
    steps.emplace_back([pattern = std::move(pattern), behavior, invert](Pieces& pieces) {
        split(pieces, pattern, behavior, invert);
    });
}

void read_byte_level(Fields& fields, PreTokenizers& steps) {
    (void)fields.flag("trim_offsets", true);  // only used by post-processors
    if (fields.flag("add_prefix_space", true)) steps.emplace_back(add_blanks_in_front);
    if (fields.flag("use_regex", true)) add_split(steps, gpt2_words(), Behavior::isolated);
    steps.emplace_back(use_byte_characters);
}

void read_metaspace(Fields& fields, PreTokenizers& steps) {
    (void)fields.find("str_rep");  // repeats the replacement
    const std::string sign = fields.character("replacement");
    steps.emplace_back(
        [sign, prepend = read_prepend_scheme(fields)](Pieces& pieces) { metaspace(pieces, sign, prepend); });
    if (fields.flag("split", true)) add_split(steps, literal(sign), Behavior::merged_with_next);
}

void read_one(Fields& fields, PreTokenizers& steps) {
    const std::string type = fields.text("type");
    if (type == "ByteLevel") {
        read_byte_level(fields, steps);
    } else if (type == "Metaspace") {
        read_metaspace(fields, steps);
    } else if (type == "BertPreTokenizer") {
        add_split(steps, each_of(is_space), Behavior::removed);
        add_split(steps, each_of(is_punctuation), Behavior::isolated);
    } else if (type == "Whitespace") {
        add_split(steps, word_runs(), Behavior::removed, true);
    } else if (type == "WhitespaceSplit") {
        add_split(steps, each_of(is_space), Behavior::removed);
    } else if (type == "Punctuation") {
        add_split(steps, each_of(is_punctuation), read_behavior(fields, "Isolated"));
    } else if (type == "Digits") {
        const bool each = fields.flag("individual_digits", false);
        add_split(steps, each_of(is_number), each ? Behavior::isolated : Behavior::contiguous);
    } else if (type == "CharDelimiterSplit") {
        add_split(steps, literal(fields.character("delimiter")), Behavior::removed);
    } else if (type == "Split") {
        const Behavior behavior = read_behavior(fields, "");
        add_split(steps, read_pattern(fields, "pattern"), behavior, fields.flag("invert", false));
    } else {
        fields.refuse("is of the type " + io::shown(type) +
                      "; known are BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, Metaspace, "
                      "Punctuation, Sequence, Split, Whitespace and WhitespaceSplit");
    }
}

}  // namespace

PreTokenizers read_pre_tokenizers(const Fields& component) {
    PreTokenizers steps;
    each_component(component, "pretokenizers", [&](Fields& fields) { read_one(fields, steps); });
    return steps;
}

}  // namespace mezzo::data::tokenizer
