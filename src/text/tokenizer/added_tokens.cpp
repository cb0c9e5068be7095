#include "text/tokenizer/added_tokens.h"

#include <algorithm>

namespace mezzo::data::tokenizer {

AddedToken read_added_token(Fields& fields) {
    AddedToken token;
    token.content = fields.text("content");
    token.id = fields.integer("id", max_id - 1, -1);
    token.special = fields.flag("special", false);
    token.single_word = fields.flag("single_word", false);
    token.lstrip = fields.flag("lstrip", false);
    token.rstrip = fields.flag("rstrip", false);
    token.normalized = fields.flag("normalized", !token.special);
    (void)fields.find("__type");  // written by older versions of transformers: the class name
    fields.done();
    return token;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Model& model, const Normalizers& normalizers,
                         const std::string& where) {
    tokens_.reserve(tokens.size());  // the keys of by_content_ refer to it
    end_ = model.vocabulary().end();
    for (AddedToken& token : tokens) {
        if (token.content.empty() || by_content_.count(token.content) > 0) continue;
        const std::int64_t own = model.vocabulary().id(token.content);
        check(own < 0 || token.id < 0 || own == token.id, ErrorKind::value, where, ": the added token ",
              io::shown(token.content), " has the id ", token.id, ", but in the model it has ", own);
        if (token.id < 0) token.id = own >= 0 ? own : end_;
        const std::string* const other = own < 0 ? model.vocabulary().token(token.id) : nullptr;
        check(!other && by_id_.count(token.id) == 0, ErrorKind::value, where, ": the added token ",
              io::shown(token.content), " has the id ", token.id, ", which another token has");
        end_ = std::max(end_, token.id + 1);
        by_id_.emplace(token.id, tokens_.size());
        tokens_.push_back(std::move(token));
        by_content_.emplace(tokens_.back().content, tokens_.size() - 1);
    }
    for (const AddedToken& token : tokens_) {
        Text text(token.content);
        if (token.normalized)
            for (const auto& normalizer : normalizers) {
                normalizer(text);
                check_growth(text, 0);
            }
        decoded_.push_back(text.bytes());
    }
    // Of tokens that the normalizer makes equal, special ones come before others, then the earlier before the
    // later. A trie keeps the last of equal keys.
    std::vector<std::string> keys[2];
    for (const bool special : {false, true})
        for (std::size_t i = tokens_.size(); i-- > 0;) {
            if (tokens_[i].special != special || decoded_[i].empty()) continue;  // "": nothing to search for
            Finder& finder = finders_[tokens_[i].normalized];
            keys[tokens_[i].normalized].push_back(decoded_[i]);
            finder.tokens.push_back(i);
            finder.starts[static_cast<unsigned char>(decoded_[i][0])] = true;
        }
    for (const int normalized : {0, 1}) finders_[normalized].trie = Trie(keys[normalized]);
}

const AddedToken* AddedTokens::Finder::longest(const AddedTokens& all, std::string_view text, std::size_t at,
                                               std::size_t& end) const {
    const AddedToken* found = nullptr;
    Trie::Node node = Trie::root;
    while (at < text.size() &&
           (node = trie.step(node, static_cast<unsigned char>(text[at++]))) != Trie::none) {
        if (trie.value(node) == Trie::none) continue;
        found = &all.tokens_[tokens[std::size_t(trie.value(node))]];
        end = at;
    }
    return found;
}

bool AddedTokens::Finder::find(const AddedTokens& all, std::string_view text, std::size_t done,
                               Match& match) const {
    if (tokens.empty()) return false;
    const auto before = [&](std::size_t end) { return last_character(text, end); };
    const auto after = [&](std::size_t begin) { return first_character(text.substr(begin)); };
    for (std::size_t at = done; at < text.size(); ++at) {
        if (!starts[static_cast<unsigned char>(text[at])]) continue;
        std::size_t begin = at, end = at;
        const AddedToken* const token = longest(all, text, at, end);
        if (!token) continue;
        if (token->single_word && ((begin > 0 && is_word(before(begin).character)) ||
                                   (end < text.size() && is_word(after(end).character)))) {
            at = end - 1;
            continue;
        }
        while (token->lstrip && begin > done && is_space(before(begin).character))
            begin -= before(begin).bytes;
        while (token->rstrip && end < text.size() && is_space(after(end).character)) end += after(end).bytes;
        match = {{begin, end}, token};
        return true;
    }
    return false;
}

std::int64_t AddedTokens::id(std::string_view token) const {
    const auto found = by_content_.find(token);
    return found == by_content_.end() ? -1 : tokens_[found->second].id;
}

const AddedToken* AddedTokens::token(std::int64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const std::string* AddedTokens::decoded(std::int64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : &decoded_[found->second];
}

}  // namespace mezzo::data::tokenizer
