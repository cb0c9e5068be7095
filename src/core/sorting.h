// Sorting with one instance of std::sort for elements of all types, for code in which size matters more than
// speed. Equal elements keep their order.
//     sort_by(names, std::less<>());
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace mezzo {

namespace detail {
std::vector<std::size_t> sorted_indices(std::size_t count,
                                        bool (*less)(const void*, std::size_t, std::size_t), const void* f);
}

// Returns 0 .. count - 1, sorted by less(i, j).
template <class F> std::vector<std::size_t> sorted_indices(std::size_t count, const F& less) {
    return detail::sorted_indices(
        count,
        [](const void* f, std::size_t i, std::size_t j) -> bool { return (*static_cast<const F*>(f))(i, j); },
        &less);
}

// Sorts `list` by less(a, b).
template <class T, class F> void sort_by(std::vector<T>& list, const F& less) {
    std::vector<T> sorted;
    sorted.reserve(list.size());
    const auto order =
        sorted_indices(list.size(), [&](std::size_t i, std::size_t j) { return less(list[i], list[j]); });
    for (const std::size_t i : order) sorted.push_back(std::move(list[i]));
    list = std::move(sorted);
}

// Returns an element that occurs twice, with null data if there is none.
std::string_view repeated(const std::vector<std::string_view>& names);

}  // namespace mezzo
