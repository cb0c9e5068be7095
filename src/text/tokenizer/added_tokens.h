// Added tokens, mostly special ones, in addition to the model's own: they are found in a text before it is
// split.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/trie.h"

namespace mezzo::data::tokenizer {

struct AddedToken {
    std::string content;
    std::int64_t id = -1;                 // as in its file; -1: the next free id
    bool special = false;                 // left out by decode(skip_special)
    bool single_word = false;             // not next to a letter or digit
    bool lstrip = false, rstrip = false;  // includes the white space on that side
    bool normalized = true;               // searched for in the normalised text, in its normalised form
};
// Reads an object of "added_tokens" of tokenizer.json, of "added_tokens_decoder", or a special token of
// tokenizer_config.json.
AddedToken read_added_token(Fields& fields);

class AddedTokens {
public:
    AddedTokens() = default;
    // Tokens of the model keep its ids. Other tokens get the id in their file, or the first id behind all
    // others. Throws Error(value) if a token's id in the model differs from that in its file, and for two
    // tokens with one id.
    AddedTokens(std::vector<AddedToken> tokens, const Model& model, const Normalizers& normalizers,
                const std::string& where);

    [[nodiscard]] std::int64_t id(std::string_view token) const;      // -1: not added
    [[nodiscard]] const AddedToken* token(std::int64_t id) const;     // null: not added
    [[nodiscard]] const std::string* decoded(std::int64_t id) const;  // the text that decoders get
    [[nodiscard]] std::int64_t end() const { return end_; }           // one above the largest id

    // Calls visit(TextRange, const AddedToken*) for the parts of a text in order, with null for text that is
    // not an added token. Searches either for the normalised tokens or for the others. Of tokens that begin
    // first, the longest is taken.
    template <class Visit> void split(std::string_view text, bool normalized, const Visit& visit) const {
        const Finder& finder = finders_[normalized];
        std::size_t done = 0;
        for (Match match; finder.find(*this, text, done, match); done = match.range.end) {
            if (match.range.begin > done) visit(TextRange{done, match.range.begin}, nullptr);
            visit(match.range, match.token);
        }
        if (done < text.size()) visit(TextRange{done, text.size()}, nullptr);
    }

private:
    struct Match {
        TextRange range{};
        const AddedToken* token = nullptr;
    };
    struct Finder {
        // Finds the first match at or behind `done`.
        bool find(const AddedTokens& all, std::string_view text, std::size_t done, Match& match) const;
        // Returns the longest token that begins at offset `at`, and its end; null if there is none.
        const AddedToken* longest(const AddedTokens& all, std::string_view text, std::size_t at,
                                  std::size_t& end) const;
        Trie trie;
        std::vector<std::size_t> tokens;  // of the trie's values
        std::array<bool, 256> starts{};   // first bytes of the tokens
    };

    std::vector<AddedToken> tokens_;
    std::vector<std::string> decoded_;
    std::unordered_map<std::int64_t, std::size_t> by_id_;
    std::unordered_map<std::string_view, std::size_t> by_content_;
    Finder finders_[2];
    std::int64_t end_ = 0;
};

}  // namespace mezzo::data::tokenizer
