// Texts as tokens: a vocabulary of bytes or of a tokenizer.json, texts for training and validation, and
// pieces of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpt/options.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/text/pretrained_tokenizer.h"

namespace gpt {

// Converts text to tokens: to its bytes, or by a tokenizer.json.
class Vocabulary {
public:
    Vocabulary() = default;  // bytes
    explicit Vocabulary(const std::string& json)
        : tokenizer_(mezzo::data::Tokenizer::from_json(json)), json_(json) {}
    // Returns the tokenizer.json of a folder; bytes if there is none.
    static Vocabulary of_folder(const std::string& folder);

    std::int64_t size() const { return tokenizer_ ? tokenizer_->size() : 256; }
    const char* unit() const { return tokenizer_ ? "tokens" : "bytes"; }  // name of its tokens
    const std::string& json() const { return json_; }                     // empty: bytes

    std::vector<std::int64_t> ids(const std::string& text) const;
    std::string text(const std::vector<std::int64_t>& ids) const;

private:
    std::optional<mezzo::data::Tokenizer> tokenizer_;
    std::string json_;
};

// Prints the text of tokens as they are generated, with control characters escaped as \x1b, so that terminals
// do not execute them.
class TextPrinter {
public:
    explicit TextPrinter(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
    void add(std::int64_t id);
    void finish();

private:
    void print(const std::string& text);

    const Vocabulary& vocabulary_;
    std::vector<std::int64_t> ids_;
    std::size_t printed_ = 0;  // bytes of their text
};

using Tokens = std::vector<std::int64_t>;

struct Texts {
    Vocabulary vocabulary;
    Tokens train, validation;
    std::size_t train_bytes = 0, validation_bytes = 0;
    std::string digest;  // of texts and vocabulary
};

// Reads the files, or the licences of this machine; the last tenth of each is for validation. Throws
// std::runtime_error unless both parts have more than options.context tokens.
Texts read_texts(const Options& options);

struct Pieces {
    mezzo::Tensor input, target;  // int64 [rows, context]; each target is the next input
    double weight = 1;            // of this rank's mean
};
// Returns this rank's rows of pieces at random positions, which depend only on seed and step.
Pieces draw_pieces(const Tokens& text, std::int64_t rows, std::int64_t context, std::uint64_t seed,
                   std::int64_t step, const mezzo::data::Shard& rank);
// Returns up to `rows` pieces, evenly spread over the text.
Pieces spread_pieces(const Tokens& text, std::int64_t rows, std::int64_t context);

}  // namespace gpt
