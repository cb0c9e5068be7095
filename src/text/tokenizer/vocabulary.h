// The tokens of a model and their ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/fields.h"

namespace mezzo::data::tokenizer {

class Vocabulary {
public:
    Vocabulary() = default;
    // Of equal tokens id() returns the last one; the others can only be decoded. Throws Error(value), in the
    // name of `where`, for two tokens with one id, and for an id of max_id or more.
    Vocabulary(std::vector<std::string> tokens, const std::vector<std::int64_t>& ids,
               const std::string& where);
    Vocabulary(const Vocabulary&) = delete;
    Vocabulary(Vocabulary&&) = default;
    Vocabulary& operator=(const Vocabulary&) = delete;
    Vocabulary& operator=(Vocabulary&&) = default;

    [[nodiscard]] std::int32_t id(std::string_view token) const {  // -1: not there
        const auto found = ids_.find(token);
        return found == ids_.end() ? -1 : found->second;
    }
    [[nodiscard]] const std::string* token(std::int64_t id) const;  // null: no token has this id
    [[nodiscard]] std::size_t size() const { return tokens_.size(); }
    // One above the largest id.
    [[nodiscard]] std::int64_t end() const { return std::int64_t(index_.size()); }
    [[nodiscard]] const std::vector<std::string>& tokens() const { return tokens_; }
    [[nodiscard]] std::int32_t id_at(std::size_t index) const { return token_ids_[index]; }

private:
    std::vector<std::string> tokens_;  // the keys of ids_ refer to it
    std::vector<std::int32_t> token_ids_, index_;
    std::unordered_map<std::string_view, std::int32_t> ids_;
};

// Reads an object of tokens and ids, as in vocab.json.
Vocabulary read_vocabulary(const JsonValue& object, const std::string& where);

}  // namespace mezzo::data::tokenizer
