// A set of byte strings as a double-array trie (Aoe 1989): all nodes are in one array, and a step is one
// comparison.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::data {

class Trie {
public:
    using Node = std::int32_t;
    static constexpr Node root = 0;
    static constexpr std::int32_t none = -1;

    Trie() = default;
    // Maps keys[i] to i; of equal keys the last one counts. Precondition: the keys together have less than
    // 2^30 bytes.
    explicit Trie(std::span<const std::string> keys);

    // Returns the child by one more byte, or none.
    Node step(Node node, unsigned char byte) const {
        const Node next = cells_[std::size_t(node)].base ^ byte;
        return cells_[std::size_t(next)].parent == node ? next : none;
    }
    // Returns the number of the key that ends here, or none.
    std::int32_t value(Node node) const { return cells_[std::size_t(node)].value; }
    // Returns the node of a whole string, or none.
    Node find(std::string_view bytes) const;

private:
    // The child by a byte is in cell base ^ byte, if that cell's parent is this cell.
    struct Cell {
        std::int32_t base = 0, parent = none, value = none;
        bool used = false;
    };
    std::int32_t place(std::span<const unsigned char> labels);

    std::vector<Cell> cells_;
    std::size_t first_free_ = 1;
};

}  // namespace mezzo::data
