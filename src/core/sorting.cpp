#include "core/sorting.h"

#include <algorithm>

namespace mezzo {

std::vector<std::size_t> detail::sorted_indices(std::size_t count,
                                                bool (*less)(const void*, std::size_t, std::size_t),
                                                const void* f) {
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [=](std::size_t i, std::size_t j) { return less(f, i, j) || (i < j && !less(f, j, i)); });
    return order;
}

std::string_view repeated(const std::vector<std::string_view>& names) {
    const auto order =
        sorted_indices(names.size(), [&](std::size_t i, std::size_t j) { return names[i] < names[j]; });
    for (std::size_t i = 1; i < order.size(); ++i)
        if (names[order[i - 1]] == names[order[i]]) return names[order[i]];
    return {};
}

}  // namespace mezzo
