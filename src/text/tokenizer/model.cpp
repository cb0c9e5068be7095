#include "text/tokenizer/model.h"

#include <fmt/format.h>

#include <functional>

namespace mezzo::data::tokenizer {

const std::vector<Token>* WordCache::find(std::string_view word) {
    slot_ = nullptr;
    if (word.size() > longest_word) return nullptr;
    if (table_.empty()) table_.resize(slots);
    slot_ = &table_[std::hash<std::string_view>()(word) % slots];
    return slot_->word == word ? &slot_->tokens : nullptr;
}

void WordCache::keep(std::string_view word, const Token* begin, const Token* end) {
    if (!slot_) return;
    slot_->word.clear();  // so that the slot is right whatever throws
    slot_->tokens.assign(begin, end);
    slot_->word = word;
}

void Model::tokenize(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const {
    if (const std::vector<Token>* const known = scratch.cache.find(piece)) {
        out.insert(out.end(), known->begin(), known->end());
        return;
    }
    check(piece.size() < std::size_t(1) << 31, ErrorKind::value, "encode: a piece of the text has ",
          piece.size(), " bytes; less than 2^31 are supported");
    const std::size_t before = out.size();
    cut(piece, scratch, out);
    scratch.cache.keep(piece, out.data() + before, out.data() + out.size());
}

std::vector<std::int32_t> byte_tokens(const Vocabulary& vocabulary) {
    std::vector<std::int32_t> ids(256);
    for (std::size_t byte = 0; byte < ids.size(); ++byte)
        ids[byte] = vocabulary.id(fmt::format("<0x{:02X}>", byte));
    return ids;
}

std::int32_t need_token(const Vocabulary& vocabulary, const std::string& token, const char* field,
                        const std::string& where) {
    const std::int32_t id = vocabulary.id(token);
    check(id >= 0, ErrorKind::value, where, ": the vocabulary has no token ", io::shown(token), ", which ",
          field, " names");
    return id;
}

std::unique_ptr<Model> read_model(Fields model) {
    std::string type = model.text("type", "");
    // Files of the first versions have no type; then each kind of model is known by a field of its own.
    if (type.empty())
        type = model.find("merges")                     ? "BPE"
               : model.find("unk_id")                   ? "Unigram"
               : model.find("max_input_chars_per_word") ? "WordPiece"
                                                        : "WordLevel";
    std::unique_ptr<Model> result;
    if (type == "BPE") {
        result = read_bpe(model);
    } else if (type == "Unigram") {
        result = read_unigram(model);
    } else if (type == "WordPiece") {
        result = read_word_piece(model);
    } else if (type == "WordLevel") {
        result = read_word_level(model);
    } else {
        model.refuse("is of the type " + io::shown(type) +
                     "; known are BPE, Unigram, WordLevel and WordPiece");
    }
    model.done_with_component();
    return result;
}

}  // namespace mezzo::data::tokenizer
