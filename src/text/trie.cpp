#include "text/trie.h"

#include <algorithm>
#include <array>

namespace mezzo::data {

namespace {

constexpr std::size_t block = 256;  // base ^ byte stays in the block of base
// number of last cells in which nodes with several children search for room
constexpr std::size_t window = 16 * block;

// Keys order[first … last) share their first `depth` bytes, which lead to `node`.
struct KeyRange {
    Trie::Node node;
    std::size_t first, last, depth;
};

}  // namespace

Trie::Trie(std::span<const std::string> keys) : cells_(block) {
    cells_[root].used = true;
    std::vector<std::int32_t> order(keys.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = std::int32_t(i);
    const auto key = [&](std::size_t position) -> const std::string& {
        return keys[std::size_t(order[position])];
    };
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return keys[std::size_t(a)] < keys[std::size_t(b)];
    });
    // Breadth first, so that the nodes near the root, which every word visits, are close together.
    std::vector<KeyRange> queue{{root, 0, keys.size(), 0}};
    std::array<unsigned char, block> labels;
    for (std::size_t done = 0; done < queue.size(); ++done) {
        auto [node, first, last, depth] = queue[done];
        for (; first < last && key(first).size() == depth; ++first)
            cells_[std::size_t(node)].value = order[first];
        if (first == last) continue;
        std::size_t count = 0;
        const std::size_t children = queue.size();
        for (std::size_t i = first; i < last; ++i) {
            const auto label = static_cast<unsigned char>(key(i)[depth]);
            if (count == 0 || labels[count - 1] != label) {
                labels[count++] = label;
                queue.push_back({none, i, i, depth + 1});
            }
            ++queue.back().last;
        }
        const std::int32_t base = place({labels.data(), count});
        cells_[std::size_t(node)].base = base;
        for (std::size_t i = 0; i < count; ++i) {
            const Node child = base ^ labels[i];
            cells_[std::size_t(child)].parent = node;
            cells_[std::size_t(child)].used = true;
            queue[children + i].node = child;
        }
    }
}

// Finds a base at which every label's cell is free.
std::int32_t Trie::place(std::span<const unsigned char> labels) {
    while (first_free_ < cells_.size() && cells_[first_free_].used) ++first_free_;
    std::size_t at = first_free_;
    if (labels.size() > 1 && cells_.size() > window) at = std::max(at, cells_.size() - window);
    for (; at < cells_.size(); ++at) {
        const std::size_t base = at ^ labels[0];
        if (std::none_of(labels.begin(), labels.end(),
                         [&](unsigned char label) { return cells_[base ^ label].used; }))
            return std::int32_t(base);
    }
    const std::size_t base = cells_.size();
    cells_.resize(base + block);
    return std::int32_t(base);
}

Trie::Node Trie::find(std::string_view bytes) const {
    Node node = root;
    for (const char byte : bytes) {
        node = step(node, static_cast<unsigned char>(byte));
        if (node == none) break;
    }
    return node;
}

}  // namespace mezzo::data
