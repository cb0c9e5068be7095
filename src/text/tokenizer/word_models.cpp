// Models that look up words: WordPiece, piece by piece, and WordLevel, as a whole.
#include "text/tokenizer/characters.h"
#include "text/tokenizer/model.h"
#include "text/trie.h"

namespace mezzo::data::tokenizer {

namespace {

class WordPiece : public Model {
public:
    WordPiece(Vocabulary words, const WordPieceModelOptions& options, const std::string& where)
        : Model(std::move(words)),
          trie_(vocabulary().tokens()),
          continuation_(trie_.find(options.continuing_prefix)),
          unknown_(need_token(vocabulary(), options.unknown, "unk_token", where)),
          longest_word_(std::size_t(options.longest_word)) {}
    std::int32_t unknown_id() const override { return unknown_; }

private:
    void cut(std::string_view piece, Scratch&, std::vector<Token>& out) const override {
        const std::size_t before = out.size();
        if (characters(piece) <= longest_word_ && match(piece, out)) return;
        out.resize(before);
        out.push_back({unknown_, 0, std::uint32_t(piece.size())});
    }
    static std::size_t characters(std::string_view piece) {
        std::size_t count = 0;
        for (const char byte : piece) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
        return count;
    }
    // Takes the longest token that fits, from the left; returns false if none fits.
    bool match(std::string_view piece, std::vector<Token>& out) const {
        Trie::Node start = Trie::root;
        for (std::size_t begin = 0; begin < piece.size(); start = continuation_) {
            std::int32_t best = Trie::none;
            std::size_t end = begin;
            Trie::Node node = start;
            for (std::size_t at = begin; node != Trie::none && at < piece.size();) {
                node = trie_.step(node, static_cast<unsigned char>(piece[at++]));
                if (node == Trie::none || trie_.value(node) == Trie::none) continue;
                best = trie_.value(node);
                end = at;
            }
            if (best == Trie::none) return false;
            out.push_back({vocabulary().id_at(std::size_t(best)), std::uint32_t(begin), std::uint32_t(end)});
            begin = end;
        }
        return true;
    }

    Trie trie_;
    Trie::Node continuation_;  // node of the continuing prefix; none if no token has it
    std::int32_t unknown_;
    std::size_t longest_word_;
};

class WordLevel : public Model {
public:
    WordLevel(Vocabulary words, const std::string& unknown)
        : Model(std::move(words)), unknown_(vocabulary().id(unknown)) {}
    std::int32_t unknown_id() const override { return unknown_; }

private:
    void cut(std::string_view piece, Scratch&, std::vector<Token>& out) const override {
        std::int32_t id = vocabulary().id(piece);
        if (id < 0) id = unknown_;
        check(id >= 0, ErrorKind::value, "encode: ", io::shown(piece),
              " is no token, and the tokenizer has no unknown token");
        out.push_back({id, 0, std::uint32_t(piece.size())});
    }
    std::int32_t unknown_;
};

}  // namespace

std::unique_ptr<Model> word_piece(Vocabulary vocabulary, WordPieceModelOptions options,
                                  const std::string& where) {
    return std::make_unique<WordPiece>(std::move(vocabulary), options, where);
}

std::unique_ptr<Model> read_word_piece(Fields& fields) {
    WordPieceModelOptions options;
    options.unknown = fields.text("unk_token", options.unknown.c_str());
    options.continuing_prefix = fields.text("continuing_subword_prefix", options.continuing_prefix.c_str());
    options.longest_word = fields.integer("max_input_chars_per_word", max_id, options.longest_word);
    return word_piece(read_vocabulary(fields.need("vocab"), fields.where() + ".vocab"), std::move(options),
                      fields.where());
}

std::unique_ptr<Model> read_word_level(Fields& fields) {
    const std::string unknown = fields.text("unk_token", "<unk>");
    return std::make_unique<WordLevel>(read_vocabulary(fields.need("vocab"), fields.where() + ".vocab"),
                                       unknown);
}

}  // namespace mezzo::data::tokenizer
