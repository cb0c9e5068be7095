// How two texts share the room that there is for tokens.
#pragma once

#include <cstddef>
#include <utility>

namespace mezzo::data {

// How many tokens are kept of texts of `first` and `second` tokens. The longer one is cut; once both are cut
// they get half the room each, and the longer one (the second if they are equally long) an odd place.
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
