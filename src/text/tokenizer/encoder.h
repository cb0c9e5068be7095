// Encodes texts as tokens, through all parts of a tokenizer.
#pragma once

#include <string_view>

#include "mezzo/text/pretrained_tokenizer.h"
#include "text/tokenizer/parts.h"

namespace mezzo::data::tokenizer {

// Returns how many tokens of the texts fit next to the special tokens; no_limit if there is no limit. Throws
// Error(value) for invalid options.
inline constexpr std::size_t no_limit = std::size_t(-1);
std::size_t room(const Parts& parts, const TokenizeOptions& options, bool pair);

// Encodes texts one after the other. Reuses its buffers; each thread has its own encoder.
class Encoder {
public:
    explicit Encoder(const Parts& parts) : parts_(parts) {}

    Encoding encode(std::string_view text, const TokenizeOptions& options);
    Encoding encode_pair(std::string_view first, std::string_view second, const TokenizeOptions& options);

private:
    // Returns the tokens of one text, without special ones. May stop after `enough` tokens.
    Encoding tokenize(std::string_view text, std::size_t enough);
    // Both add a part of a text between added tokens: add_section() before it is normalised, add_words()
    // after.
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
