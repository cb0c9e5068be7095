// Learns a WordPiece vocabulary by merging the most frequent pair of neighbouring pieces, again and again
// (byte-pair encoding: Sennrich et al., arXiv 1508.07909), within words only.
#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>

#include "data/words.h"
#include "mezzo/error.h"

namespace mezzo::data {

namespace {

using Pair = std::pair<int, int>;
struct PairHash {
    std::size_t operator()(const Pair& p) const {
        return std::hash<std::uint64_t>()(std::uint64_t(p.first) << 32 | std::uint64_t(p.second));
    }
};

// A distinct word as pieces, and how often it occurs.
struct CountedWord {
    std::vector<int> pieces;
    std::int64_t count = 0;
};

class Learner {
public:
    explicit Learner(const std::vector<std::string>& texts, const WordPieceOptions& options) {
        const std::map<std::string, std::int64_t> counts = count_words(texts, options);
        for (const auto& [word, count] : counts) split_characters(word, count);
    }

    // Appends pieces to the vocabulary: characters by frequency, as many as fit, then merged pairs.
    void learn(std::vector<std::string>& vocabulary, std::size_t size, std::int64_t min_count) {
        add_characters(vocabulary, size);
        for (std::size_t w = 0; w < words_.size(); ++w) count_pairs(w, +1);
        for (const auto& [pair, use] : pairs_) queue_.push({use.count, pair});
        while (vocabulary.size() < size && !queue_.empty()) {
            const Candidate best = queue_.top();
            queue_.pop();
            const auto found = pairs_.find(best.pair);
            if (found == pairs_.end() || found->second.count != best.count) continue;  // out of date
            if (best.count < min_count) break;
            const std::string merged =
                texts_[std::size_t(best.pair.first)] + texts_[std::size_t(best.pair.second)].substr(2);
            const bool fresh = !ids_.contains(merged);
            merge(best.pair, piece(merged));
            if (fresh) vocabulary.push_back(merged);
        }
    }

private:
    struct Use {
        std::int64_t count = 0;
        std::vector<std::size_t> words;  // may have a word twice, or one that no longer has the pair
    };
    struct Candidate {
        std::int64_t count;
        Pair pair;
        // The queue gives the most frequent pair first; of equal ones the one whose pieces are older.
        friend bool operator<(const Candidate& a, const Candidate& b) {
            return a.count != b.count ? a.count < b.count : a.pair > b.pair;
        }
    };

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

    int piece(const std::string& text) {
        const auto [at, fresh] = ids_.try_emplace(text, int(texts_.size()));
        if (fresh) texts_.push_back(text);
        return at->second;
    }

    void split_characters(const std::string& word, std::int64_t count) {
        CountedWord counted{{}, count};
        for (std::size_t i = 0; i < word.size();) {
            const std::size_t bytes = decode_utf8(std::string_view(word).substr(i)).bytes;
            const int id = piece((i > 0 ? "##" : "") + word.substr(i, bytes));
            counted.pieces.push_back(id);
            if (std::size_t(id) >= character_counts_.size()) character_counts_.resize(std::size_t(id) + 1);
            character_counts_[std::size_t(id)] += count;
            i += bytes;
        }
        words_.push_back(std::move(counted));
    }

    void add_characters(std::vector<std::string>& vocabulary, std::size_t size) const {
        std::vector<std::size_t> order(character_counts_.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return character_counts_[a] > character_counts_[b];
        });
        for (const std::size_t i : order)
            if (vocabulary.size() < size) vocabulary.push_back(texts_[i]);
    }

    // Adds the pairs of one word to the counts (sign = 1) or subtracts them (-1).
    void count_pairs(std::size_t w, std::int64_t sign) {
        const CountedWord& word = words_[w];
        for (std::size_t i = 0; i + 1 < word.pieces.size(); ++i) {
            const Pair pair{word.pieces[i], word.pieces[i + 1]};
            Use& use = pairs_[pair];
            use.count += sign * word.count;
            if (sign > 0) use.words.push_back(w);
            changed_.push_back(pair);
        }
    }

    void merge(const Pair& pair, int merged) {
        std::vector<std::size_t> affected = pairs_[pair].words;
        std::sort(affected.begin(), affected.end());
        affected.erase(std::unique(affected.begin(), affected.end()), affected.end());
        changed_.clear();
        for (const std::size_t w : affected) {
            std::vector<int>& pieces = words_[w].pieces;
            std::vector<int> shorter;
            for (std::size_t i = 0; i < pieces.size(); ++i) {
                const bool here =
                    i + 1 < pieces.size() && pieces[i] == pair.first && pieces[i + 1] == pair.second;
                shorter.push_back(here ? merged : pieces[i]);
                if (here) ++i;
            }
            if (shorter.size() == pieces.size()) continue;
            count_pairs(w, -1);
            pieces = std::move(shorter);
            count_pairs(w, +1);
        }
        std::sort(changed_.begin(), changed_.end());
        changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
        for (const Pair& p : changed_) {
            const auto found = pairs_.find(p);
            if (found->second.count > 0)
                queue_.push({found->second.count, p});
            else
                pairs_.erase(found);
        }
    }

    std::unordered_map<std::string, int> ids_;
    std::vector<std::string> texts_;  // of pieces; those inside a word begin with ##
    std::vector<std::int64_t> character_counts_;
    std::vector<CountedWord> words_;
    std::unordered_map<Pair, Use, PairHash> pairs_;
    std::priority_queue<Candidate> queue_;
    std::vector<Pair> changed_;
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
