// A text during normalisation and splitting, with the bytes of the user's text that each of its bytes comes
// from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/characters.h"

namespace mezzo::data::tokenizer {

// Bytes [begin, end) of the user's text.
struct SourceRange {
    std::uint32_t begin, end;
};
// Bytes [begin, end) of a Text.
struct TextRange {
    std::size_t begin, end;
};

// A text in valid UTF-8, with the source of each byte.
class Text {
public:
    Text() = default;
    // `given` is the user's text, of less than 2^32 bytes. Every byte that is not part of valid UTF-8 becomes
    // U+FFFD.
    explicit Text(std::string_view given);

    [[nodiscard]] const std::string& bytes() const { return bytes_; }
    [[nodiscard]] std::size_t size() const { return bytes_.size(); }
    [[nodiscard]] bool empty() const { return bytes_.empty(); }
    // Returns the source of a range that is not empty, from its first to its last byte.
    [[nodiscard]] SourceRange place(TextRange range) const {
        return {places_[range.begin].begin, places_[range.end - 1].end};
    }

    void append(std::string_view utf8, SourceRange place) {
        bytes_ += utf8;
        places_.resize(bytes_.size(), place);
    }
    void append(char32_t character, SourceRange place) {
        append_utf8(bytes_, character);
        places_.resize(bytes_.size(), place);
    }
    void append(const Text& from, TextRange range) {
        bytes_.append(from.bytes_, range.begin, range.end - range.begin);
        places_.insert(places_.end(), from.places_.begin() + std::ptrdiff_t(range.begin),
                       from.places_.begin() + std::ptrdiff_t(range.end));
    }
    void reserve(std::size_t size) {
        bytes_.reserve(size);
        places_.reserve(size);
    }
    [[nodiscard]] bool is_ascii() const;

private:
    std::string bytes_;
    std::vector<SourceRange> places_;  // for each byte: the source of its whole character
};

// Throws Error(value) if `bytes`, or the text itself, is more than 64 times the part of the user's text that
// it comes from, and more than 1024 bytes: a chain of normalizers may grow a text exponentially.
void check_growth(const Text& text, std::size_t bytes);

// Calls visit(character, TextRange of its bytes) for each character.
template <class Visit> void each_character(const Text& text, const Visit& visit) {
    const std::string_view bytes = text.bytes();
    for (std::size_t at = 0; at < bytes.size();) {
        const Decoded next = first_character(bytes.substr(at));
        visit(next.character, TextRange{at, at + next.bytes});
        at += next.bytes;
    }
}

}  // namespace mezzo::data::tokenizer
