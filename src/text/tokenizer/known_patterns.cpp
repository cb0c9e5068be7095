// The regular expressions of widely used tokenizers, matched by code: they must work in every build, and take
// most of the time of byte-level tokenizers.
#include <algorithm>
#include <optional>
#include <vector>

#include "text/tokenizer/pattern.h"

namespace mezzo::data::tokenizer {

namespace {

// Returns the end of the match that begins at `at`, or `at` if there is none.
using MatchAt = std::size_t (*)(std::string_view text, std::size_t at);

// At each character the alternatives `first` are tried before match_at.
Pattern known_pattern(MatchAt match_at, std::vector<std::string> first = {}) {
    return [match_at, first = std::move(first)](std::string_view text, std::size_t from, TextRange& match) {
        const auto end = [&](std::size_t at) {
            for (const std::string& literal : first)
                if (text.substr(at).starts_with(literal)) return at + literal.size();
            return match_at(text, at);
        };
        while (from < text.size()) {
            match = {from, end(from)};
            if (match.end > from) return true;
            from += first_character(text.substr(from)).bytes;
        }
        return false;
    };
}

// Returns the end of the characters from `at` on that belong to a class, at most `most` of them.
template <class Belongs> std::size_t run(std::string_view text, std::size_t at, const Belongs& belongs,
                                         std::size_t most = std::size_t(-1)) {
    for (; at < text.size() && most > 0; --most) {
        const Decoded next = first_character(text.substr(at));
        if (!belongs(next.character)) break;
        at += next.bytes;
    }
    return at;
}
std::size_t run(std::string_view text, std::size_t at, CharacterClass wanted,
                std::size_t most = std::size_t(-1)) {
    return run(
        text, at, [&](char32_t c) { return kind(c) == wanted; }, most);
}

bool is_line_end(char32_t c) { return c == '\r' || c == '\n'; }

// 's|'t|'re|'ve|'m|'ll|'d
std::size_t contraction(std::string_view text, std::size_t at) {
    if (text[at] != '\'') return at;
    for (const std::string_view end : {"s", "t", "re", "ve", "m", "ll", "d"})
        if (text.substr(at + 1).starts_with(end)) return at + 1 + end.size();
    return at;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d). Case-insensitively, s is also U+017F, the long s.
std::size_t contraction_any_case(std::string_view text, std::size_t at) {
    if (text[at] != '\'') return at;
    constexpr std::string_view long_s = "\u017f";
    if (text.substr(at + 1).starts_with(long_s)) return at + 1 + long_s.size();
    std::string word{"'"};
    for (std::size_t i = at + 1; i < std::min(at + 3, text.size()); ++i)
        word += text[i] >= 'A' && text[i] <= 'Z' ? char(text[i] - 'A' + 'a') : text[i];
    return at + contraction(word, 0);
}

// \s+(?!\S)|\s+: the white space, except its last character if more text follows.
std::size_t white_space(std::string_view text, std::size_t at) {
    const std::size_t end = run(text, at, CharacterClass::space);
    if (end == text.size() || end == at) return end;
    const std::size_t last = end - last_character(text, end).bytes;
    return last > at ? last : end;
}

// \p{L}+, \p{N}+ or [^\s\p{L}\p{N}]+, whichever fits.
std::size_t one_kind(std::string_view text, std::size_t at) {
    if (at == text.size()) return at;
    const CharacterClass first = kind(first_character(text.substr(at)).character);
    return first == CharacterClass::space ? at : run(text, at, first);
}

std::size_t gpt2(std::string_view text, std::size_t at) {
    if (const std::size_t end = contraction(text, at); end > at) return end;
    const std::size_t start = at + (text[at] == ' ');
    if (const std::size_t end = one_kind(text, start); end > start) return end;
    return white_space(text, at);
}

std::size_t clip(std::string_view text, std::size_t at) {
    if (const std::size_t end = contraction(text, at); end > at) return end;
    if (const std::size_t end = run(text, at, CharacterClass::number, 1); end > at) return end;
    return one_kind(text, at);
}

// The expression of cl100k_base; Qwen 2 takes numbers digit by digit.
template <std::size_t most_digits> std::size_t cl100k(std::string_view text, std::size_t at) {
    if (const std::size_t end = contraction_any_case(text, at); end > at) return end;
    // [^\r\n\p{L}\p{N}]?\p{L}+
    const Decoded first = first_character(text.substr(at));
    const CharacterClass of = kind(first.character);
    const bool opens =
        of != CharacterClass::letter && of != CharacterClass::number && !is_line_end(first.character);
    const std::size_t letters = opens ? at + first.bytes : at;
    if (const std::size_t end = run(text, letters, CharacterClass::letter); end > letters) return end;
    if (const std::size_t end = run(text, at, CharacterClass::number, most_digits); end > at) return end;
    //  ?[^\s\p{L}\p{N}]+[\r\n]*
    const std::size_t signs = at + (text[at] == ' ');
    if (const std::size_t end = run(text, signs, CharacterClass::other); end > signs)
        return run(text, end, is_line_end);
    // \s*[\r\n]+
    const std::size_t end = run(text, at, CharacterClass::space);
    const std::size_t line_end = text.substr(at, end - at).find_last_of("\r\n");
    if (line_end != std::string_view::npos) return at + line_end + 1;
    return white_space(text, at);
}

std::size_t words(std::string_view text, std::size_t at) {
    if (const std::size_t end = run(text, at, is_word); end > at) return end;
    return run(text, at, [](char32_t c) { return !is_word(c) && !is_space(c); });
}

std::size_t spaces(std::string_view text, std::size_t at) { return run(text, at, CharacterClass::space); }
std::size_t several_blanks(std::string_view text, std::size_t at) {
    const std::size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    return end - at >= 2 ? end : at;
}

constexpr struct {
    std::string_view expression;
    MatchAt match_at;
} known[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cl100k<3>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cl100k<1>},
    {R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)", clip},
    {R"(\s+)", spaces},
    {" {2,}", several_blanks},
};

// Removes the first alternative of an expression, with the '|' behind it, and returns it if it is literal
// text.
std::optional<std::string> take_literal(std::string_view& expression) {
    std::string literal;
    for (std::size_t i = 0; i < expression.size(); ++i) {
        char c = expression[i];
        if (c == '|') {
            if (literal.empty()) return std::nullopt;
            expression.remove_prefix(i + 1);
            return literal;
        }
        constexpr std::string_view special = ".^$*+?()[]{}|\\";
        if (c == '\\') {
            // A backslash before a letter or a digit is a class or another rule.
            if (++i == expression.size() || !std::ispunct(static_cast<unsigned char>(expression[i])))
                return std::nullopt;
            c = expression[i];
        } else if (special.find(c) != std::string_view::npos) {
            return std::nullopt;
        }
        literal += c;
    }
    return std::nullopt;
}

}  // namespace

Pattern gpt2_words() { return known_pattern(gpt2); }
Pattern word_runs() { return known_pattern(words); }

Pattern known_expression(std::string_view expression) {
    // CLIP's published file has its two special tokens as alternatives before the known expression.
    std::vector<std::string> first;
    for (;;) {
        for (const auto& entry : known)
            if (entry.expression == expression) return known_pattern(entry.match_at, first);
        std::optional<std::string> literal = take_literal(expression);
        if (!literal) return nullptr;
        first.push_back(std::move(*literal));
    }
}

}  // namespace mezzo::data::tokenizer
