// Learns a WordPiece vocabulary: characters, and pairs merged within words.
#include <algorithm>
#include <map>

#include "mezzo/error.h"
#include "text/pair_merger.h"
#include "text/words.h"

namespace mezzo::data {

namespace {

// Pieces inside a word begin with ##.
std::string joined(const std::string& first, const std::string& second) { return first + second.substr(2); }

class Learner {
public:
    explicit Learner(const std::vector<std::string>& texts, const WordPieceOptions& options) {
        const std::map<std::string, std::int64_t> counts = count_words(texts, options);
        for (const auto& [word, count] : counts) split_characters(word, count);
    }

    // Appends pieces to the vocabulary: characters by frequency, as many as fit, then merged pairs.
    void learn(std::vector<std::string>& vocabulary, std::size_t size, std::int64_t min_count) {
        add_characters(vocabulary, size);
        while (vocabulary.size() < size) {
            const auto merge = merger_.next(min_count);
            if (!merge) break;
            if (merge->fresh) vocabulary.push_back(merger_.text(merge->merged));
        }
    }

private:
    static std::map<std::string, std::int64_t> count_words(const std::vector<std::string>& texts,
                                                           const WordPieceOptions& options) {
        const WordRules rules(options);
        UnicodeWords unicode(rules);
        std::map<std::string, std::int64_t> counts;
        std::string word;
        for (const std::string& text : texts)
            for_each_word(rules, text, 0, text.size(), unicode, [&](const Word& w) {
                if (w.characters > rules.max_characters) return true;
                word.clear();
                for (const char byte : w.bytes) word += char(w.map[static_cast<unsigned char>(byte)]);
                ++counts[word];
                return true;
            });
        return counts;
    }

    void split_characters(const std::string& word, std::int64_t count) {
        std::vector<int> pieces;
        for (std::size_t i = 0; i < word.size();) {
            const std::size_t bytes = decode_utf8(std::string_view(word).substr(i)).bytes;
            const int id = merger_.piece((i > 0 ? "##" : "") + word.substr(i, bytes));
            pieces.push_back(id);
            if (std::size_t(id) >= character_counts_.size()) character_counts_.resize(std::size_t(id) + 1);
            character_counts_[std::size_t(id)] += count;
            i += bytes;
        }
        merger_.add_word(std::move(pieces), count);
    }

    void add_characters(std::vector<std::string>& vocabulary, std::size_t size) const {
        std::vector<int> order(character_counts_.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = int(i);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
            return character_counts_[std::size_t(a)] > character_counts_[std::size_t(b)];
        });
        for (const int id : order)
            if (vocabulary.size() < size) vocabulary.push_back(merger_.text(id));
    }

    PairMerger merger_{joined};
    std::vector<std::int64_t> character_counts_;
};

}  // namespace

std::vector<std::string> learn_wordpiece(const std::vector<std::string>& texts,
                                         const VocabularyOptions& options) {
    const WordPieceOptions& w = options.tokenizer;
    std::vector<std::string> vocabulary{w.pad_token, w.unk_token, w.cls_token, w.sep_token, w.mask_token};
    check(options.size >= std::int64_t(vocabulary.size()), ErrorKind::value, "learn_wordpiece: size ",
          options.size, " has no room for the ", vocabulary.size(), " special tokens");
    check(options.min_count >= 1, ErrorKind::value, "learn_wordpiece: min_count ", options.min_count,
          " is less than 1");
    Learner(texts, w).learn(vocabulary, std::size_t(options.size), options.min_count);
    return vocabulary;
}

}  // namespace mezzo::data
