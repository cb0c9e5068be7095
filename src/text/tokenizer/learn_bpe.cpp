// Learns a byte-level BPE tokenizer.
#include <algorithm>
#include <array>
#include <map>

#include "io/json.h"
#include "mezzo/error.h"
#include "mezzo/text/pretrained_tokenizer.h"
#include "text/pair_merger.h"
#include "text/tokenizer/byte_characters.h"
#include "text/tokenizer/pattern.h"

namespace mezzo::data {

namespace {

using tokenizer::Text;

std::string joined(const std::string& first, const std::string& second) { return first + second; }

// Counts the words of GPT-2's expression.
std::map<std::string, std::int64_t> count_words(const std::vector<std::string>& texts) {
    const tokenizer::Pattern words = tokenizer::gpt2_words();
    std::map<std::string, std::int64_t> counts;
    for (const std::string& given : texts) {
        const Text text(given);
        const std::string_view bytes = text.bytes();
        tokenizer::TextRange match{};
        for (std::size_t at = 0; at < bytes.size() && words(bytes, at, match); at = match.end)
            ++counts[std::string(bytes.substr(match.begin, match.end - match.begin))];
    }
    return counts;
}

// Returns the characters of all bytes; the vocabulary has them in the order of their code points.
std::map<char32_t, unsigned char> alphabet() {
    std::map<char32_t, unsigned char> characters;
    for (int byte = 0; byte < 256; ++byte)
        characters[tokenizer::byte_character(static_cast<unsigned char>(byte))] =
            static_cast<unsigned char>(byte);
    return characters;
}

std::string utf8(char32_t character) {
    std::string text;
    append_utf8(text, character);
    return text;
}

std::string quoted(const std::string& text) {
    std::string out;
    io::append_quoted(out, text);
    return out;
}

class Learner {
public:
    // Pieces are numbered like tokens: special tokens come first.
    explicit Learner(const std::vector<std::string>& special_tokens) : special_(special_tokens) {
        for (const std::string& token : special_) merger_.piece(token);
        for (const auto& [character, byte] : alphabet()) bytes_[byte] = merger_.piece(utf8(character));
    }

    void learn(const std::vector<std::string>& texts, const BpeVocabularyOptions& options) {
        for (const auto& [word, count] : count_words(texts)) {
            std::vector<int> pieces;
            for (const char byte : word) pieces.push_back(bytes_[static_cast<unsigned char>(byte)]);
            merger_.add_word(std::move(pieces), count);
        }
        while (merger_.size() < std::size_t(options.size)) {
            const auto merge = merger_.next(options.min_count);
            if (!merge) break;
            merges_ += (merges_.empty() ? "" : ",") +
                       quoted(merger_.text(merge->first) + ' ' + merger_.text(merge->second));
        }
    }

    // Writes fields in the order of the Python package `tokenizers`.
    [[nodiscard]] std::string json() const {
        const std::string byte_level =
            R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
        std::string added, vocabulary;
        for (std::size_t id = 0; id < special_.size(); ++id)
            added +=
                (id == 0 ? "" : ",") + (R"({"id":)" + std::to_string(id) + R"(,"content":)") +
                quoted(special_[id]) +
                R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
        for (std::size_t id = 0; id < merger_.size(); ++id)
            vocabulary += (id == 0 ? "" : ",") + quoted(merger_.text(int(id))) + ':' + std::to_string(id);
        return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
               R"(],"normalizer":null,"pre_tokenizer":)" + byte_level +
               R"(,"post_processor":null,"decoder":)" + byte_level +
               R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)" +
               R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)" +
               vocabulary + R"(},"merges":[)" + merges_ + "]}}\n";
    }

private:
    const std::vector<std::string>& special_;
    PairMerger merger_{joined};
    std::array<int, 256> bytes_{};  // the piece of each byte
    std::string merges_;            // in JSON, with commas between
};

void check_special_tokens(const std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::string& token = tokens[i];
        check(!token.empty() && io::first_invalid_utf8(token) == token.size(), ErrorKind::value,
              "learn_bpe: special token ", i, " ", token.empty() ? "is empty" : "is not valid UTF-8");
        check(std::count(tokens.begin(), tokens.end(), token) == 1, ErrorKind::value,
              "learn_bpe: the special token ", io::shown(token), " is given more than once");
    }
}

}  // namespace

std::string learn_bpe(const std::vector<std::string>& texts, const BpeVocabularyOptions& options) {
    const std::int64_t least = 256 + std::int64_t(options.special_tokens.size());
    check(options.size >= least && options.size <= INT32_MAX, ErrorKind::value, "learn_bpe: size ",
          options.size, " is not between ", least, ", the bytes and special tokens, and 2^31 - 1");
    check(options.min_count >= 1, ErrorKind::value, "learn_bpe: min_count ", options.min_count,
          " is less than 1");
    check_special_tokens(options.special_tokens);
    Learner learner(options.special_tokens);
    learner.learn(texts, options);
    return learner.json();
}

}  // namespace mezzo::data
