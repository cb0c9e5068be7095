// Converts text to tokens: to its bytes, or by a tokenizer.json.
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

}  // namespace gpt
