// The unigram language model: splits a piece into the tokens with the largest sum of log-probabilities
// (Viterbi).
#include <algorithm>

#include "text/tokenizer/characters.h"
#include "text/tokenizer/model.h"
#include "text/trie.h"

namespace mezzo::data::tokenizer {

namespace {

constexpr double unknown_penalty = 10;  // below the least likely token, as in SentencePiece

std::vector<std::int64_t> indices(std::size_t count) {
    std::vector<std::int64_t> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = std::int64_t(i);
    return result;
}

class Unigram : public Model {
public:
    Unigram(std::vector<std::string> tokens, std::vector<double> scores, std::int64_t unknown,
            bool byte_fallback, const std::string& where)
        : Model(Vocabulary(std::move(tokens), indices(scores.size()), where)),
          trie_(vocabulary().tokens()),
          scores_(std::move(scores)),
          unknown_(std::int32_t(unknown)) {
        const auto least = std::min_element(scores_.begin(), scores_.end());
        if (least != scores_.end()) unknown_score_ = *least - unknown_penalty;
        if (byte_fallback) bytes_ = byte_tokens(vocabulary());
    }
    std::int32_t unknown_id() const override { return unknown_; }

private:
    using Cut = Scratch::Cut;

    void cut(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const override;
    void find_cuts(std::string_view piece, std::vector<Cut>& cuts) const;
    void offer_tokens(std::string_view piece, std::size_t at, std::size_t character_end,
                      std::vector<Cut>& cuts) const;
    void add(std::string_view bytes, Token token, std::vector<Token>& out) const;

    Trie trie_;
    std::vector<double> scores_;
    std::int32_t unknown_;
    double unknown_score_ = 0;
    std::vector<std::int32_t> bytes_;
};

void offer(Scratch::Cut& cut, double score, std::size_t begin, std::int32_t id) {
    if (cut.begin < 0 || score > cut.score) cut = {score, std::int64_t(begin), id};
}

// Adds the tokens that begin at `at`, and the unknown token if none of them is the single character there.
void Unigram::offer_tokens(std::string_view piece, std::size_t at, std::size_t character_end,
                           std::vector<Cut>& cuts) const {
    const double before = cuts[at].score;
    bool has_character = false;
    Trie::Node node = Trie::root;
    for (std::size_t end = at; end < piece.size();) {
        node = trie_.step(node, static_cast<unsigned char>(piece[end++]));
        if (node == Trie::none) break;
        const std::int32_t id = trie_.value(node);
        if (id == Trie::none) continue;
        offer(cuts[end], before + scores_[std::size_t(id)], at, id);
        has_character |= end == character_end;
    }
    if (has_character) return;
    check(unknown_ >= 0, ErrorKind::value, "encode: no token begins with ",
          io::shown(piece.substr(at, character_end - at)), ", and the tokenizer has no unknown token");
    offer(cuts[character_end], before + unknown_score_, at, unknown_);
}

void Unigram::find_cuts(std::string_view piece, std::vector<Cut>& cuts) const {
    cuts.assign(piece.size() + 1, {0, -1, -1});
    for (std::size_t at = 0; at < piece.size();) {
        const std::size_t end = at + first_character(piece.substr(at)).bytes;
        offer_tokens(piece, at, end, cuts);
        at = end;
    }
}

void Unigram::cut(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const {
    std::vector<Cut>& cuts = scratch.cuts;
    find_cuts(piece, cuts);
    std::vector<Token>& tokens = scratch.tokens;  // from the last to the first
    tokens.clear();
    for (std::size_t end = piece.size(); end > 0;) {
        const Cut& best = cuts[end];
        const Token token{best.id, std::uint32_t(best.begin), std::uint32_t(end)};
        // Adjacent unknown tokens become one.
        if (best.id == unknown_ && !tokens.empty() && tokens.back().id == unknown_)
            tokens.back().begin = token.begin;
        else
            tokens.push_back(token);
        end = std::size_t(best.begin);
    }
    for (std::size_t i = tokens.size(); i-- > 0;)
        add(piece.substr(tokens[i].begin, tokens[i].end - tokens[i].begin), tokens[i], out);
}

// An unknown run may itself be a token that lost against its parts; otherwise it may be written as bytes.
void Unigram::add(std::string_view bytes, Token token, std::vector<Token>& out) const {
    if (token.id == unknown_) {
        if (const std::int32_t own = vocabulary().id(bytes); own >= 0) {
            token.id = own;
        } else if (!bytes_.empty() && std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
                       return bytes_[static_cast<unsigned char>(byte)] >= 0;
                   })) {
            for (const char byte : bytes)
                out.push_back({bytes_[static_cast<unsigned char>(byte)], token.begin, token.end});
            return;
        }
    }
    out.push_back(token);
}

}  // namespace

std::unique_ptr<Model> read_unigram(Fields& fields) {
    std::vector<std::string> tokens;
    std::vector<double> scores;
    const std::vector<JsonValue>& vocabulary = fields.items("vocab");
    check(!vocabulary.empty() && std::int64_t(vocabulary.size()) < max_id, ErrorKind::value, fields.where(),
          ".vocab has ", vocabulary.size(), " tokens; 1 to ", max_id - 1, " are expected");
    for (const JsonValue& pair : vocabulary) {
        const std::string where = fields.where() + ".vocab[" + std::to_string(tokens.size()) + "]";
        const bool is_pair = pair.kind == JsonKind::array && pair.items.size() == 2;
        const JsonKind kind = is_pair ? pair.items[1].kind : JsonKind::null;
        check(kind == JsonKind::natural || kind == JsonKind::negative || kind == JsonKind::real,
              ErrorKind::value, where, " is no array of a token and its score");
        tokens.push_back(text_of(pair.items[0], where));
        scores.push_back(pair.items[1].number);
    }
    const JsonValue* const unknown = fields.find("unk_id");
    const std::int64_t unknown_id =
        unknown ? integer_of(*unknown, fields.where() + ".unk_id", std::int64_t(tokens.size()) - 1) : -1;
    return std::make_unique<Unigram>(std::move(tokens), std::move(scores), unknown_id,
                                     fields.flag("byte_fallback", false), fields.where() + ".vocab");
}

}  // namespace mezzo::data::tokenizer
