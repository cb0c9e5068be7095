// WordPiece: the tokenizer of BERT (Devlin et al., arXiv 1810.04805). pad(): makes tensors of encodings.
//
//   const data::WordPiece tokenizer("bert/vocab.txt");
//   const data::TokenBatch batch = data::pad(tokenizer.encode_batch({"A short text.", "Another one."}));
//   ids = batch.input_ids;        // int64 [2, length]
//   mask = batch.attention_mask;  // boolean [2, length], false for padding
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// Treatment of accents; `strip` turns é into e.
enum class Accents : std::uint8_t { follow_lower_case, strip, keep };

// Options of WordPiece. The defaults are those of bert-base-uncased. docs/guide/text.md lists differences
// between implementations.
struct WordPieceOptions {
    bool lower_case = true;
    Accents accents = Accents::follow_lower_case;  // strip when lower_case, else keep
    bool tokenize_chinese_chars = true;            // every CJK ideograph is a word
    std::int64_t max_chars_per_word = 100;         // longer words (in code points) become unk_token
    // Texts of the special tokens. All but mask_token must be in the vocabulary.
    std::string unk_token = "[UNK]", sep_token = "[SEP]", pad_token = "[PAD]", cls_token = "[CLS]",
                mask_token = "[MASK]";
};

// Bytes [begin, end) of the original text.
struct Span {
    std::int64_t begin = 0, end = 0;
    friend bool operator==(const Span&, const Span&) = default;
};

// The tokens of a text or of a pair of texts; the three vectors have one element per token.
struct Encoding {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> token_type_ids;  // 0, or 1 for the second text and the [SEP] after it
    std::vector<Span> offsets;  // bytes of the token in its text; {0, 0} for added special tokens
    [[nodiscard]] std::int64_t size() const { return std::int64_t(ids.size()); }
    // Whether encode() has added the token: [CLS] and [SEP], but not a [MASK] that the text itself contains.
    [[nodiscard]] bool is_special(std::size_t index) const { return offsets[index] == Span{}; }
};

struct EncodeOptions {
    std::int64_t max_length = 512;   // tokens at most, special ones included; 0 for no limit
    bool add_special_tokens = true;  // [CLS] a [SEP], or [CLS] a [SEP] b [SEP]
};

// WordPiece tokenizer. A handle: copies share the vocabulary, which never changes. All functions may be
// called from several threads at once.
//
// Text is UTF-8. Invalid bytes and control characters are dropped; text that spells a special token, such as
// [MASK], becomes that token.
class WordPiece {
public:
    // Reads a vocab.txt: UTF-8, one token per line; a token's id is the number of its line, from 0. Line ends
    // are \n or \r\n. Error(io) for a file that cannot be read, else as from_vocabulary().
    explicit WordPiece(const std::string& vocab_path, const WordPieceOptions& options = {});
    // The token at index i has id i. Tokens that start with ## continue a word. If tokens are equal, encode()
    // finds the last one; the others can only be decoded. Error(value) for an empty vocabulary, a missing
    // special token, and a token that is no valid UTF-8.
    [[nodiscard]] static WordPiece from_vocabulary(std::vector<std::string> tokens,
                                                   const WordPieceOptions& options = {});

    // Cuts the end off to fit options.max_length. Error(value) where that is negative, or when not even the
    // special tokens fit.
    [[nodiscard]] Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
    // Encodes a pair, and cuts the longer text if it does not fit. If both must be cut, each gets half of the
    // tokens; an odd one goes to the longer text (the second if they are equally long).
    [[nodiscard]] Encoding encode_pair(std::string_view first, std::string_view second,
                                       const EncodeOptions& options = {}) const;
    // encode() of each text, on num_threads() threads.
    [[nodiscard]] std::vector<Encoding> encode_batch(const std::vector<std::string>& texts,
                                                     const EncodeOptions& options = {}) const;

    // The tokens with spaces between them, except before ## which is left out. skip_special leaves out the
    // five special tokens. Error(value) for an id that is not in [0, size()).
    [[nodiscard]] std::string decode(std::span<const std::int64_t> ids, bool skip_special = true) const;

    [[nodiscard]] std::int64_t id(std::string_view token) const;    // -1: not in the vocabulary
    [[nodiscard]] const std::string& token(std::int64_t id) const;  // Error(value) unless in [0, size())
    [[nodiscard]] std::int64_t size() const;                        // of the vocabulary
    [[nodiscard]] std::int64_t unk_id() const;
    [[nodiscard]] std::int64_t sep_id() const;
    [[nodiscard]] std::int64_t pad_id() const;
    [[nodiscard]] std::int64_t cls_id() const;
    [[nodiscard]] std::int64_t mask_id() const;  // -1: not in the vocabulary

private:
    explicit WordPiece(mezzo::detail::SharedObject* state) : state_(state) {}
    mezzo::detail::SharedHandle<mezzo::detail::SharedObject> state_;
};

struct VocabularyOptions {
    std::int64_t size = 30000;   // tokens at most, special ones included
    std::int64_t min_count = 2;  // a pair that occurs less often is not merged
    // splitting of texts into words, and the special tokens, which come first
    WordPieceOptions tokenizer = {};
};
// Learns a vocabulary for WordPiece::from_vocabulary() from texts: the special tokens, every character (the
// most frequent ones if not all fit), and pieces made by merging the most frequent pair of neighbours in the
// words (byte-pair encoding, Sennrich et al., arXiv 1508.07909) until `size` is reached. The same texts
// always give the same vocabulary. Throws Error(value) for a size below the number of special tokens and a
// min_count below 1.
[[nodiscard]] std::vector<std::string> learn_wordpiece(const std::vector<std::string>& texts,
                                                       const VocabularyOptions& options = {});

struct PadOptions {
    std::int64_t pad_id = 0;       // WordPiece::pad_id(); Tokenizer::pad_options() has it set
    std::int64_t length = 0;       // tokens a row; 0 for the longest encoding
    std::int64_t multiple_of = 1;  // the length is rounded up to a multiple; 8 suits matrix units
    std::int64_t pad_type_id = 0;  // token type of padding
    bool left = false;             // padding stands before the tokens
    Device device = cpu_device;
};

// The input of a model. Each is [n, length].
struct TokenBatch {
    Tensor input_ids;       // int64, padded with pad_id
    Tensor token_type_ids;  // int64, padded with pad_type_id
    Tensor attention_mask;  // boolean, true where a token is
};
// Calls f with each tensor, for prefetch().
template <class F> void each_tensor(TokenBatch& batch, F&& f) {
    f(batch.input_ids);
    f(batch.token_type_ids);
    f(batch.attention_mask);
}

// Puts encodings into the rows of tensors. Error(value) when one is longer than options.length, for a
// negative length and a multiple_of below 1.
[[nodiscard]] TokenBatch pad(std::span<const Encoding> encodings, const PadOptions& options = {});

}  // namespace mezzo::data

#pragma GCC visibility pop
