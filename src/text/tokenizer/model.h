// Models: they convert a piece of a text to tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/fields.h"
#include "text/tokenizer/vocabulary.h"

namespace mezzo::data::tokenizer {

// A token, and its bytes [begin, end) in the piece.
struct Token {
    std::int32_t id;
    std::uint32_t begin, end;
};

// Cache of the tokens of recent words. Each slot holds one of the words that hash to it, so that its memory
// is bounded.
class WordCache {
public:
    // Returns null if the word is not in the cache.
    const std::vector<Token>* find(std::string_view word);
    // Stores the tokens of the word of the last find().
    void keep(std::string_view word, const Token* begin, const Token* end);

private:
    struct CachedWord {
        std::string word;
        std::vector<Token> tokens;
    };
    static constexpr std::size_t slots = 1 << 13, longest_word = 64;
    std::vector<CachedWord> table_;
    CachedWord* slot_ = nullptr;
};

// Memory that a model reuses for the next piece; each thread has its own.
struct Scratch {
    // A node of the list of symbols that BPE merges.
    struct Symbol {
        std::int32_t id, previous, next;
        std::uint32_t begin, end;
    };
    // A possible merge in BPE, of the symbol at `position` and the next one.
    struct Merge {
        std::uint32_t rank;
        std::int32_t position, id;
    };
    // The best way to split the bytes up to here, for Unigram.
    struct Cut {
        double score;
        std::int64_t begin;  // of its last token; -1: not reached yet
        std::int32_t id;
    };
    WordCache cache;
    std::vector<Symbol> symbols;
    std::vector<Merge> merges;
    std::vector<Cut> cuts;
    std::vector<Token> tokens;
    std::string text;
};

class Model {
public:
    explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
    virtual ~Model() = default;
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    // Appends the tokens of a piece, which is not empty. Throws Error(value) for a piece of 2^31 bytes or
    // more.
    void tokenize(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const;
    [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }
    // Whether spaces before punctuation belong to the text, so that clean_up_tokenization_spaces must not
    // remove them.
    [[nodiscard]] virtual bool is_bpe() const { return false; }
    [[nodiscard]] virtual std::int32_t unknown_id() const = 0;  // -1: there is none

protected:
    virtual void cut(std::string_view piece, Scratch& scratch, std::vector<Token>& out) const = 0;

private:
    Vocabulary vocabulary_;
};

// Reads the field "model" of tokenizer.json; throws Error(value).
std::unique_ptr<Model> read_model(Fields model);

struct BpeOptions {
    std::string unknown;  // token for unknown characters; empty: they are dropped
    std::string continuing_prefix, end_suffix;
    bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};
using MergePairs = std::vector<std::pair<std::string, std::string>>;
// Byte-pair encoding (Sennrich et al., arXiv 1508.07909); merges in their order.
std::unique_ptr<Model> bpe(Vocabulary vocabulary, const MergePairs& merges, BpeOptions options,
                           const std::string& where);
std::unique_ptr<Model> read_bpe(Fields& fields);

// The unigram language model of SentencePiece (Kudo, arXiv 1804.10959).
std::unique_ptr<Model> read_unigram(Fields& fields);

struct WordPieceModelOptions {
    std::string unknown = "[UNK]", continuing_prefix = "##";
    std::int64_t longest_word = 100;  // in characters; longer ones are unknown
};
// Greedy longest match, as in BERT.
std::unique_ptr<Model> word_piece(Vocabulary vocabulary, WordPieceModelOptions options,
                                  const std::string& where);
std::unique_ptr<Model> read_word_piece(Fields& fields);
// Whole pieces only.
std::unique_ptr<Model> read_word_level(Fields& fields);

// Returns the ids of <0x00> to <0xFF>, the tokens for single bytes; -1 for those that are not in the
// vocabulary.
std::vector<std::int32_t> byte_tokens(const Vocabulary& vocabulary);
// Returns the id of a token that must be in the vocabulary.
std::int32_t need_token(const Vocabulary& vocabulary, const std::string& token, const char* field,
                        const std::string& where);

}  // namespace mezzo::data::tokenizer
