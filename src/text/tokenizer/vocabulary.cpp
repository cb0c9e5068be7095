#include "text/tokenizer/vocabulary.h"

#include <algorithm>

namespace mezzo::data::tokenizer {

Vocabulary::Vocabulary(std::vector<std::string> tokens, const std::vector<std::int64_t>& ids,
                       const std::string& where)
    : tokens_(std::move(tokens)) {
    const auto largest = std::max_element(ids.begin(), ids.end());
    if (largest == ids.end()) return;
    check(*largest < max_id, ErrorKind::value, where, " has the id ", *largest, "; ids below ", max_id,
          " are expected");
    index_.assign(std::size_t(*largest) + 1, -1);
    token_ids_.reserve(tokens_.size());
    ids_.reserve(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
        std::int32_t& index = index_[std::size_t(ids[i])];
        check(index < 0, ErrorKind::value, where, ": the tokens ",
              io::shown(tokens_[std::size_t(std::max(index, 0))]), " and ", io::shown(tokens_[i]),
              " have the same id ", ids[i]);
        index = std::int32_t(i);
        token_ids_.push_back(std::int32_t(ids[i]));
        ids_[tokens_[i]] = token_ids_[i];
    }
}

const std::string* Vocabulary::token(std::int64_t id) const {
    if (id < 0 || id >= end() || index_[std::size_t(id)] < 0) return nullptr;
    return &tokens_[std::size_t(index_[std::size_t(id)])];
}

Vocabulary read_vocabulary(const JsonValue& object, const std::string& where) {
    check(object.kind == JsonKind::object, ErrorKind::value, where, " is ", io::name(object.kind),
          "; an object of tokens and ids is expected");
    std::vector<std::string> tokens;
    std::vector<std::int64_t> ids;
    tokens.reserve(object.members.size());
    ids.reserve(object.members.size());
    for (const io::JsonMember& member : object.members) {
        tokens.push_back(member.key);
        ids.push_back(integer_of(member.value, where, max_id - 1));
    }
    return {std::move(tokens), ids, where};
}

}  // namespace mezzo::data::tokenizer
