// Divides a limit on tokens between two texts.
#pragma once

#include <cstddef>
#include <utility>

namespace mezzo::data {

// Returns how many tokens remain of texts of `first` and `second` tokens. The longer text is truncated; if
// both must be, each gets half of the room, and the longer one (the second if they are equally long) an odd
// token.
inline std::pair<std::size_t, std::size_t> longest_first(std::size_t first, std::size_t second,
                                                         std::size_t room) {
    const bool swap = first > second;
    std::size_t shorter = swap ? second : first, longer = swap ? first : second;
    if (room < shorter || room - shorter < longer) {
        if (room < shorter || room - shorter < shorter) shorter = room / 2;
        longer = room - shorter;
    }
    return swap ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

}  // namespace mezzo::data
