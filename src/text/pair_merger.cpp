#include "text/pair_merger.h"

#include <algorithm>

namespace mezzo::data {

int PairMerger::piece(const std::string& text) {
    const auto [at, fresh] = ids_.try_emplace(text, int(texts_.size()));
    if (fresh) texts_.push_back(text);
    return at->second;
}

void PairMerger::add_word(std::vector<int> pieces, std::int64_t count) {
    words_.push_back({std::move(pieces), count});
    count_pairs(words_.size() - 1, +1);
}

std::optional<PairMerger::Merge> PairMerger::next(std::int64_t min_count) {
    queue_changed();
    while (!queue_.empty()) {
        const Candidate best = queue_.top();
        const auto found = pairs_.find(best.pair);
        if (found == pairs_.end() || found->second.count != best.count) {
            queue_.pop();
            continue;
        }
        if (best.count < min_count) return std::nullopt;
        queue_.pop();
        const std::size_t before = size();
        const int merged = piece(join_(text(best.pair.first), text(best.pair.second)));
        merge(best.pair, merged);
        return Merge{best.pair.first, best.pair.second, merged, size() > before};
    }
    return std::nullopt;
}

// Adds the pairs of one word to the counts (sign = 1) or subtracts them (-1).
void PairMerger::count_pairs(std::size_t word, std::int64_t sign) {
    const Word& w = words_[word];
    for (std::size_t i = 0; i + 1 < w.pieces.size(); ++i) {
        const Pair pair{w.pieces[i], w.pieces[i + 1]};
        Use& use = pairs_[pair];
        use.count += sign * w.count;
        if (sign > 0) use.words.push_back(word);
        changed_.push_back(pair);
    }
}

void PairMerger::merge(const Pair& pair, int merged) {
    std::vector<std::size_t> affected = pairs_[pair].words;
    std::sort(affected.begin(), affected.end());
    affected.erase(std::unique(affected.begin(), affected.end()), affected.end());
    for (const std::size_t word : affected) {
        std::vector<int>& pieces = words_[word].pieces;
        std::vector<int> shorter;
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            const bool here =
                i + 1 < pieces.size() && pieces[i] == pair.first && pieces[i + 1] == pair.second;
            shorter.push_back(here ? merged : pieces[i]);
            if (here) ++i;
        }
        if (shorter.size() == pieces.size()) continue;
        count_pairs(word, -1);
        pieces = std::move(shorter);
        count_pairs(word, +1);
    }
}

void PairMerger::queue_changed() {
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair& pair : changed_) {
        const auto found = pairs_.find(pair);
        if (found->second.count > 0)
            queue_.push({found->second.count, pair});
        else
            pairs_.erase(found);
    }
    changed_.clear();
}

}  // namespace mezzo::data
