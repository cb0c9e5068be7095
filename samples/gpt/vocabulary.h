// How a text becomes tokens: as its bytes, or by a tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <mezzo/mezzo.h>

namespace gpt {

class Vocabulary {
public:
    Vocabulary() = default;  // bytes
    explicit Vocabulary(const std::string& json)
        : tokenizer_(mezzo::data::Tokenizer::from_json(json)), json_(json) {}
    // The tokenizer.json of a folder; bytes, if there is none.
    static Vocabulary of_folder(const std::string& folder);

    std::int64_t size() const { return tokenizer_ ? tokenizer_->size() : 256; }
    const char* unit() const { return tokenizer_ ? "tokens" : "bytes"; }  // what it calls a token
    const std::string& json() const { return json_; }                     // empty: bytes

    std::vector<std::int64_t> ids(const std::string& text) const;
    std::string text(const std::vector<std::int64_t>& ids) const;

private:
    std::optional<mezzo::data::Tokenizer> tokenizer_;
    std::string json_;
};

// Prints the text of tokens as they come; control characters as \x1b, so that no terminal obeys them.
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

}  // namespace gpt
