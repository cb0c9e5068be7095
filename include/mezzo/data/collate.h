// DefaultCollate: the batch function of a BatchLoader that gets none. Stacks samples, as PyTorch's
// default_collate.
//
//   const std::vector<std::pair<Tensor, float>> samples = {{x, 1.f}, {y, 2.f}};
//   const auto [inputs, targets] = data::DefaultCollate()(samples);  // stack({x, y}), and [2]
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

namespace detail {

template <class T> inline constexpr bool is_tuple = false;
template <class... T> inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class A, class B> inline constexpr bool is_tuple<std::pair<A, B>> = true;

}  // namespace detail

// Makes a batch of samples, whose type follows from theirs:
//  - tensors of one shape are stacked along a new first dimension;
//  - numbers become a tensor [n]: integers int64, float and double as they are, bool boolean;
//  - pairs, tuples and lists of tensors become one of batches, position by position;
//  - samples of other types stay in a std::vector.
struct DefaultCollate {
    template <class Sample> auto operator()(const std::vector<Sample>& samples) const {
        if constexpr (std::is_same_v<Sample, Tensor>) {
            return stacked(samples);
        } else if constexpr (std::is_same_v<Sample, Tensors>) {
            return stacked_lists(samples);
        } else if constexpr (detail::is_tuple<Sample>) {
            return parts(samples, static_cast<Sample*>(nullptr));
        } else if constexpr (std::is_arithmetic_v<Sample>) {
            using Stored = std::conditional_t<std::is_floating_point_v<Sample>, Sample, std::int64_t>;
            const std::vector<Stored> values(samples.begin(), samples.end());
            const Tensor batch = Tensor::from(values, {std::int64_t(values.size())});
            return std::is_same_v<Sample, bool> ? batch.to(boolean) : batch;
        } else {
            return samples;
        }
    }

private:
    // Stacks tensors along a new first dimension. Error(shape) if their shapes differ.
    static Tensor stacked(const Tensors& samples);
    // Error(shape) if a sample has another number of tensors than the first.
    static Tensors stacked_lists(const std::vector<Tensors>& samples);
    template <class A, class B>
    auto parts(const std::vector<std::pair<A, B>>& samples, std::pair<A, B>*) const {
        return std::pair((*this)(part<0, A>(samples)), (*this)(part<1, B>(samples)));
    }
    template <class... T> auto parts(const std::vector<std::tuple<T...>>& samples, std::tuple<T...>*) const {
        return [&]<std::size_t... i>(std::index_sequence<i...>) {
            return std::tuple((*this)(part<i, T>(samples))...);
        }
        (std::index_sequence_for<T...>());
    }
    // The values at one position of all samples.
    template <std::size_t i, class T, class Sample>
    static std::vector<std::decay_t<T>> part(const std::vector<Sample>& samples) {
        std::vector<std::decay_t<T>> values;
        values.reserve(samples.size());
        for (const Sample& sample : samples) values.push_back(std::get<i>(sample));
        return values;
    }
};

}  // namespace mezzo::data

#pragma GCC visibility pop
