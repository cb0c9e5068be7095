// Tokenizer: loads tokenizers in Hugging Face's formats: tokenizer.json (WordPiece, BPE, Unigram, WordLevel),
// and the older files vocab.json with merges.txt (GPT-2, RoBERTa) and vocab.txt (BERT).
//
//   const data::Tokenizer tokenizer("gpt2");  // a folder of Hugging Face's files
//   const data::Encoding encoding = tokenizer.encode("Once upon a time");
//   std::cout << tokenizer.decode(encoding.ids) << '\n';
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/shared.h"
#include "mezzo/text/tokenizer.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

struct TokenizeOptions {
    // Tokens at most, special ones included. 0: no limit. -1: the limit of the file's "truncation", if it has
    // one. Tokenizer::model_max_length() is that of the model.
    std::int64_t max_length = -1;
    bool add_special_tokens = true;  // special tokens of the post-processor, such as [CLS] a [SEP]
};

// Converts text to token ids and back. A handle: copies share the vocabulary, which never changes. All
// functions may be called from several threads at once.
//
// Text is UTF-8; every byte that is not part of valid UTF-8 counts as U+FFFD. Ids are those of the Python
// packages `tokenizers` and `transformers`; docs/guide/text.md says where they may differ.
class Tokenizer {
public:
    // Loads a tokenizer.json, or the folder of a model. In a folder tokenizer_config.json and
    // special_tokens_map.json are read too, if they are there, and without tokenizer.json vocab.json and
    // merges.txt, or vocab.txt. Throws Error(io) for files that cannot be read or hold no valid JSON, and
    // Error(value) for features that are not supported or settings that contradict each other; nothing in a
    // file is ignored silently.
    explicit Tokenizer(const std::string& path);
    // The texts of tokenizer.json and tokenizer_config.json. Throws as the constructor.
    [[nodiscard]] static Tokenizer from_json(std::string_view tokenizer, std::string_view config = "{}");

    // Error(value) where options.max_length is below -1 or leaves no room for the special tokens, for a text
    // of 2^32 bytes or more, and where the text needs an unknown token that the model lacks.
    [[nodiscard]] Encoding encode(std::string_view text, const TokenizeOptions& options = {}) const;
    // Encodes both texts with the special tokens for pairs. Texts that are too long are cut by the file's
    // "truncation"; without one, as by WordPiece::encode_pair().
    [[nodiscard]] Encoding encode_pair(std::string_view first, std::string_view second,
                                       const TokenizeOptions& options = {}) const;
    // encode() of each text, on num_threads() threads.
    [[nodiscard]] std::vector<Encoding> encode_batch(const std::vector<std::string>& texts,
                                                     const TokenizeOptions& options = {}) const;
    // Options for pad(): the file's "padding", or else the pad token and the side of tokenizer_config.json.
    // Without a pad token pad_id is 0.
    [[nodiscard]] PadOptions pad_options() const;

    // skip_special leaves out special tokens. Error(value) for an id that no token has.
    [[nodiscard]] std::string decode(std::span<const std::int64_t> ids, bool skip_special = true) const;

    [[nodiscard]] std::int64_t id(std::string_view token) const;  // -1: there is no such token
    // Error(value) if no token has this id; some ids below size() may be free.
    [[nodiscard]] const std::string& token(std::int64_t id) const;
    // One more than the largest id: the rows that an embedding needs.
    [[nodiscard]] std::int64_t size() const;
    // Special tokens by their names in tokenizer_config.json; -1: the files do not name one.
    [[nodiscard]] std::int64_t bos_id() const;
    [[nodiscard]] std::int64_t eos_id() const;
    [[nodiscard]] std::int64_t unk_id() const;
    [[nodiscard]] std::int64_t sep_id() const;
    [[nodiscard]] std::int64_t pad_id() const;
    [[nodiscard]] std::int64_t cls_id() const;
    [[nodiscard]] std::int64_t mask_id() const;
    // Limit of tokenizer_config.json; 0: it has none, or one above 2^31, which means none.
    [[nodiscard]] std::int64_t model_max_length() const;

private:
    explicit Tokenizer(mezzo::detail::SharedObject* state) : state_(state) {}
    mezzo::detail::SharedHandle<mezzo::detail::SharedObject> state_;
};

struct BpeVocabularyOptions {
    std::int64_t size = 30000;   // tokens at most: special ones, the 256 bytes, merged pairs
    std::int64_t min_count = 2;  // a pair that occurs less often is not merged
    std::vector<std::string> special_tokens = {"<|endoftext|>"};  // they come first
};
// Learns byte-level BPE, and returns the text of a tokenizer.json for Tokenizer::from_json() or a model's
// folder: BPE as in GPT-2 (Radford et al. 2019; Sennrich et al., arXiv 1508.07909). Merges and ids are those
// of the Python package `tokenizers`, and the same texts always give the same ones. Throws Error(value) for a
// size below that of the bytes and special tokens, a min_count below 1, and special tokens that are empty, no
// valid UTF-8 or given twice.
[[nodiscard]] std::string learn_bpe(const std::vector<std::string>& texts,
                                    const BpeVocabularyOptions& options = {});

}  // namespace mezzo::data

#pragma GCC visibility pop
