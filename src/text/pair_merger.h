// Byte-pair encoding (Sennrich et al., arXiv 1508.07909): repeatedly merges the most frequent pair of
// neighbouring pieces within words into a new piece.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mezzo::data {

class PairMerger {
public:
    using Join = std::string (*)(const std::string& first, const std::string& second);
    // `join` returns the text of a merged piece.
    explicit PairMerger(Join join) : join_(join) {}

    // Returns the id of the piece with this text; new pieces are numbered in order.
    int piece(const std::string& text);
    [[nodiscard]] const std::string& text(int piece) const { return texts_[std::size_t(piece)]; }
    [[nodiscard]] std::size_t size() const { return texts_.size(); }  // pieces so far

    // Adds a distinct word as pieces, with its number of occurrences. All words are added before the first
    // merge.
    void add_word(std::vector<int> pieces, std::int64_t count);

    struct Merge {
        int first, second, merged;
        bool fresh;  // no other pair has made this piece before
    };
    // Merges the most frequent pair; of equally frequent pairs the one with the older pieces. Returns nothing
    // if no pair occurs min_count times.
    std::optional<Merge> next(std::int64_t min_count);

private:
    using Pair = std::pair<int, int>;
    struct PairHash {
        std::size_t operator()(const Pair& p) const {
            return std::hash<std::uint64_t>()(std::uint64_t(p.first) << 32 | std::uint64_t(p.second));
        }
    };
    struct Word {
        std::vector<int> pieces;
        std::int64_t count = 0;
    };
    struct Use {
        std::int64_t count = 0;
        std::vector<std::size_t> words;  // may have a word twice, or a word that no longer has the pair
    };
    struct Candidate {
        std::int64_t count;
        Pair pair;
        friend bool operator<(const Candidate& a, const Candidate& b) {
            return a.count != b.count ? a.count < b.count : a.pair > b.pair;
        }
    };

    void count_pairs(std::size_t word, std::int64_t sign);
    void merge(const Pair& pair, int merged);
    void queue_changed();

    Join join_;
    std::unordered_map<std::string, int> ids_;
    std::vector<std::string> texts_;
    std::vector<Word> words_;
    std::unordered_map<Pair, Use, PairHash> pairs_;
    std::priority_queue<Candidate> queue_;  // may also hold outdated counts
    std::vector<Pair> changed_;             // pairs whose count has changed since they were queued
};

}  // namespace mezzo::data
