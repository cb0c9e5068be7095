// Texts to tokens: the way through all parts of a tokenizer.
#pragma once

#include <string_view>

#include "data/tokenizer/parts.h"
#include "mezzo/pretrained_tokenizer.h"

namespace mezzo::data::tokenizer {

// How many tokens of the texts fit beside the special ones; no_limit if there is none. Throws Error(value) for
// options that cannot be.
inline constexpr std::size_t no_limit = std::size_t(-1);
std::size_t room(const Parts& parts, const TokenizeOptions& options, bool pair);

// Uses its buffers again for the next text; each thread has its own.
class Encoder {
public:
    explicit Encoder(const Parts& parts) : parts_(parts) {}

    Encoding encode(std::string_view text, const TokenizeOptions& options);
    Encoding encode_pair(std::string_view first, std::string_view second, const TokenizeOptions& options);

private:
    // The tokens of one text, without special ones. It may stop once it has `enough`.
    Encoding tokenize(std::string_view text, std::size_t enough);
    // A part of a text between added tokens: before it is normalised, and after.
    void add_section(Text section, std::size_t enough, Encoding& out);
    void add_words(Text text, std::size_t enough, Encoding& out);
    void shorten(Encoding& first, Encoding& second, std::size_t room) const;
    void keep(Encoding& encoding, std::size_t count) const;
    void trim_offsets(Encoding& encoding, std::string_view text) const;
    static Encoding join(const Template& parts, const Encoding& first, const Encoding& second, bool special);

    const Parts& parts_;
    Scratch scratch_;
    std::vector<Token> tokens_;
};

}  // namespace mezzo::data::tokenizer
