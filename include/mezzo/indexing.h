// Entries of an index x[{...}] that are neither integers nor tensors: Slice, ellipsis, newaxis.
//
//   y = x[{ellipsis, -1}];              // x[..., -1] in Python
//   y = x[{Slice(0, 10, 2), newaxis}];  // x[0:10:2, None]
//   x[{0, Slice(2)}].fill_(0);          // x[0, 2:] = 0
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Python's start:stop:step, with the rules of Tensor::slice(): negative bounds count from the end, bounds
// beyond an end are moved to it, and the step is positive (flip() reverses a dimension). Slice() is the whole
// dimension, Slice(2) all from element 2 on, Slice(-3) the last three.
struct Slice {
    static constexpr std::int64_t to_end = std::numeric_limits<std::int64_t>::max();
    constexpr Slice(std::int64_t first = 0, std::int64_t before = to_end, std::int64_t by = 1)
        : start(first), stop(before), step(by) {}
    std::int64_t start, stop, step;
};

struct Ellipsis {};
struct NewAxis {};
inline constexpr Ellipsis ellipsis{};  // stands for all dimensions that are not listed, whole
inline constexpr NewAxis newaxis{};    // a new dimension of size 1

namespace detail {
template <class T>
concept Integer = std::integral<T> && !std::same_as<T, bool>;
template <class T>
concept NoIndex = std::is_arithmetic_v<T> && !Integer<T>;
template <class... T>
concept NotAllIntegers = (std::is_arithmetic_v<T> && ...) && (std::floating_point<T> || ...);
}  // namespace detail

}  // namespace mezzo

#pragma GCC visibility pop
