// Tokens that are found in a text before it is cut, beside the model's own: special ones above all.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/model.h"
#include "data/tokenizer/normalizer.h"
#include "data/trie.h"

namespace mezzo::data::tokenizer {

struct AddedToken {
    std::string content;
    std::int64_t id = -1;                 // as its file says; -1: whatever id is free
    bool special = false;                 // left out by decode(skip_special)
    bool single_word = false;             // not beside a letter or digit
    bool lstrip = false, rstrip = false;  // takes the white space on that side
    bool normalized = true;               // is looked for in the normalised text, in its normalised form
};
// An object of "added_tokens" of tokenizer.json, of "added_tokens_decoder" or a special token of
// tokenizer_config.json.
AddedToken read_added_token(Fields& fields);

class AddedTokens {
public:
    AddedTokens() = default;
    // Tokens that the model has keep its ids. The others have the id that their file says, or the first one
    // behind all others. Throws Error(value) for a token that the model has under another id than the file
    // says, and for two tokens of one id.
    AddedTokens(std::vector<AddedToken> tokens, const Model& model, const Normalizers& normalizers,
                const std::string& where);

    [[nodiscard]] std::int64_t id(std::string_view token) const;      // -1: not added
    [[nodiscard]] const AddedToken* token(std::int64_t id) const;     // null: not added
    [[nodiscard]] const std::string* decoded(std::int64_t id) const;  // the text that decoders get
    [[nodiscard]] std::int64_t end() const { return end_; }           // one above the largest id

    // Calls visit(Range, const AddedToken*) for the parts of a text in order: null for what is no added token.
    // Which ones are looked for: those that are normalised, or the others. The longest one that begins first
    // is taken.
    template <class Visit> void split(std::string_view text, bool normalized, const Visit& visit) const {
        const Finder& finder = finders_[normalized];
        std::size_t done = 0;
        for (Match match; finder.find(*this, text, done, match); done = match.range.end) {
            if (match.range.begin > done) visit(Range{done, match.range.begin}, nullptr);
            visit(match.range, match.token);
        }
        if (done < text.size()) visit(Range{done, text.size()}, nullptr);
    }

private:
    struct Match {
        Range range{};
        const AddedToken* token = nullptr;
    };
    struct Finder {
        // The first match at or behind `done`.
        bool find(const AddedTokens& all, std::string_view text, std::size_t done, Match& match) const;
        // The longest token at a place, and its end; null if there is none.
        const AddedToken* longest(const AddedTokens& all, std::string_view text, std::size_t at,
                                  std::size_t& end) const;
        Trie trie;
        std::vector<std::size_t> tokens;  // of the trie's values
        std::array<bool, 256> starts{};   // the bytes that tokens begin with
    };

    std::vector<AddedToken> tokens_;
    std::vector<std::string> decoded_;
    std::unordered_map<std::int64_t, std::size_t> by_id_;
    std::unordered_map<std::string_view, std::size_t> by_content_;
    Finder finders_[2];
    std::int64_t end_ = 0;
};

}  // namespace mezzo::data::tokenizer
