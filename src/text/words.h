// BERT's basic tokenizer: cleans and normalises a text and splits it into words, without copying plain ASCII.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tokenizer.h"
#include "text/unicode.h"

namespace mezzo::data {

// A word: its bytes, each of which is to be replaced by its entry in `map`, and the bytes of the text that
// they come from.
struct Word {
    std::string_view bytes;
    const unsigned char* map;  // 256 entries: lower case, or each byte as it is
    std::size_t characters;
    std::int64_t begin, end;  // in the text
    const Span* sources;      // of each byte; null: bytes[i] is byte begin + i of the text
    Span source(std::size_t first, std::size_t last) const {
        if (sources) return {sources[first].begin, sources[last - 1].end};
        return {begin + std::int64_t(first), begin + std::int64_t(last)};
    }
};

// Look-up tables made from the options.
struct WordRules {
    explicit WordRules(const WordPieceOptions& options);

    enum class Byte : unsigned char { word, space, punctuation, other };  // other: dropped, or not ASCII
    std::array<Byte, 256> kind;
    std::array<unsigned char, 256> map, identity;
    bool lower, strip, split_ideographs;
    std::size_t max_characters;
};

// Splits a part of a text that is not plain ASCII into words, character by character. Of a word that is too
// long it stores only the first characters, and the number of characters.
class UnicodeWords {
public:
    explicit UnicodeWords(const WordRules& rules) : rules_(rules) {}

    // Calls on_word(Word) for each word of text[begin, end) until it returns false; returns its last answer.
    template <class OnWord>
    bool split(std::string_view text, std::size_t begin, std::size_t end, const OnWord& on_word) {
        more_ = true;
        while (begin < end && more_) {
            const Decoded next = decode_utf8(text.substr(begin, end - begin));
            const Span source{std::int64_t(begin), std::int64_t(begin + next.bytes)};
            begin += next.bytes;
            const CharacterKind kind = kind_of(next.character);
            if (kind == CharacterKind::dropped) continue;
            const bool alone = kind == CharacterKind::ideograph && rules_.split_ideographs;
            if (kind == CharacterKind::space || alone) finish(on_word);
            if (kind != CharacterKind::space) normalize(next.character, source, on_word);
            if (alone) finish(on_word);
        }
        finish(on_word);
        return more_;
    }

private:
    struct Mark {
        char32_t character;
        int combining_class;
        Span source;
    };

    // Decomposes (NFD) and drops nonspacing marks. Other marks are collected until all consecutive ones can
    // be sorted.
    template <class OnWord> void normalize(char32_t character, Span source, const OnWord& on_word) {
        if (!rules_.strip) return lower(character, source, on_word);
        char32_t parts[max_parts];
        const int count = character < 0x80 ? (parts[0] = character, 1) : decompose(character, false, parts);
        for (int i = 0; i < count; ++i) {
            const int order = parts[i] < 0x80 ? 0 : combining_class(parts[i]);
            if (order == 0) finish_marks(on_word);
            if (parts[i] >= 0x80 && is_nonspacing_mark(parts[i])) continue;
            if (order == 0)
                lower(parts[i], source, on_word);
            else
                marks_.push_back({parts[i], order, source});
        }
    }
    template <class OnWord> void finish_marks(const OnWord& on_word) {
        if (marks_.empty()) return;
        const Span all{marks_.front().source.begin, marks_.back().source.end};
        std::stable_sort(marks_.begin(), marks_.end(),
                         [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
        for (const Mark& mark : marks_) lower(mark.character, all, on_word);
        marks_.clear();
    }
    template <class OnWord> void lower(char32_t character, Span source, const OnWord& on_word) {
        if (rules_.lower && character == 0x130) {  // the only character whose lower case is two characters
            add('i', source, on_word);
            add(0x307, source, on_word);
        } else {
            add(rules_.lower ? to_lower(character) : character, source, on_word);
        }
    }
    template <class OnWord> void add(char32_t character, Span source, const OnWord& on_word) {
        const bool punctuation = is_punctuation(character);
        if (punctuation) finish_word(on_word);
        if (characters_++ == 0) begin_ = source.begin;
        end_ = source.end;
        if (characters_ <= rules_.max_characters) append_utf8(bytes_, character);
        sources_.resize(bytes_.size(), source);
        if (punctuation) finish_word(on_word);
    }
    template <class OnWord> void finish_word(const OnWord& on_word) {
        if (characters_ == 0) return;
        more_ = more_ &&
                on_word(Word{bytes_, rules_.identity.data(), characters_, begin_, end_, sources_.data()});
        bytes_.clear();
        sources_.clear();
        characters_ = 0;
    }
    template <class OnWord> void finish(const OnWord& on_word) {
        finish_marks(on_word);
        finish_word(on_word);
    }

    const WordRules& rules_;
    std::string bytes_;
    std::vector<Span> sources_;
    std::vector<Mark> marks_;
    std::size_t characters_ = 0;
    std::int64_t begin_ = 0, end_ = 0;
    bool more_ = true;
};

// Calls on_word(Word) for each word of text[begin, end) until it returns false.
template <class OnWord> void for_each_word(const WordRules& rules, std::string_view text, std::size_t begin,
                                           std::size_t end, UnicodeWords& unicode, const OnWord& on_word) {
    using Byte = WordRules::Byte;
    const auto kind = [&](std::size_t at) { return rules.kind[static_cast<unsigned char>(text[at])]; };
    const auto plain = [&](std::size_t first, std::size_t last) {
        return on_word(Word{text.substr(first, last - first), rules.map.data(), last - first,
                            std::int64_t(first), std::int64_t(last), nullptr});
    };
    bool more = true;
    while (begin < end && more) {
        if (kind(begin) == Byte::space) {
            ++begin;
        } else if (kind(begin) == Byte::punctuation) {
            more = plain(begin, begin + 1);
            ++begin;
        } else {
            std::size_t last = begin;
            while (last < end && kind(last) == Byte::word) ++last;
            if (last == end || kind(last) != Byte::other) {
                more = plain(begin, last);
            } else {
                while (last < end && (kind(last) == Byte::word || kind(last) == Byte::other)) ++last;
                more = unicode.split(text, begin, last, on_word);
            }
            begin = last;
        }
    }
}

}  // namespace mezzo::data
