// Parts and unions of data sets: Subset, random_split(), ConcatDataset, TensorDataset.
//
//   const data::TensorDataset all({x, y, labels});
//   const auto parts = data::random_split(all, {0.9, 0.1}, {.seed = 7});
//   data::BatchLoader batches(parts[0], {.batch_size = 32, .shuffle = true});
//   for (const Tensors& batch : batches) loss = train(batch[0], batch[2]);
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <utility>
#include <vector>

#include "mezzo/data/batch_loader.h"
#include "mezzo/data/loader.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// A data set whose samples have indices, for BatchLoader or DataLoader.
template <class D>
concept IndexedDataset = MapDataset<D> || LazyDataset<D>;

namespace detail {

// Throws Error(value) unless 0 <= index < size.
void check_index(const char* op, std::int64_t index, std::int64_t size);
// The sums of the first sizes, from 0 on. Error(value) for a negative size.
std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& sizes);

}  // namespace detail

// The samples of a data set at these indices, in their order. Copies share the data set.
template <IndexedDataset D> class Subset {
public:
    // Error(value) for an index that the data set does not have.
    Subset(D dataset, std::vector<std::int64_t> indices)
        : Subset(Shared(new detail::Box<D>(std::move(dataset))), std::move(indices)) {}
    [[nodiscard]] std::int64_t size() const { return std::int64_t(indices_.size()); }
    [[nodiscard]] const D& dataset() const { return dataset_->value; }
    [[nodiscard]] const std::vector<std::int64_t>& indices() const { return indices_; }
    // All throw Error(value) unless 0 <= i < size().
    [[nodiscard]] decltype(auto) get(std::int64_t i) const requires MapDataset<D> {
        return dataset().get(index_at(i));
    }
    [[nodiscard]] Tensor image(std::int64_t i) const requires LazyDataset<D> {
        return dataset().image(index_at(i));
    }
    [[nodiscard]] std::int64_t label(std::int64_t i) const requires LazyDataset<D> {
        return dataset().label(index_at(i));
    }
    // Subsets of one data set, which they share.
    [[nodiscard]] static std::vector<Subset> split(D dataset, std::vector<std::vector<std::int64_t>> parts) {
        const Shared shared(new detail::Box<D>(std::move(dataset)));
        std::vector<Subset> subsets;
        for (std::vector<std::int64_t>& indices : parts)
            subsets.push_back(Subset(shared, std::move(indices)));
        return subsets;
    }

private:
    using Shared = mezzo::detail::SharedHandle<detail::Box<D>>;
    Subset(const Shared& dataset, std::vector<std::int64_t> indices)
        : dataset_(dataset), indices_(std::move(indices)) {
        const std::int64_t size = this->dataset().size();
        for (const std::int64_t index : indices_) detail::check_index("Subset", index, size);
    }
    [[nodiscard]] std::int64_t index_at(std::int64_t i) const {
        detail::check_index("Subset", i, size());
        return indices_[static_cast<std::size_t>(i)];
    }
    Shared dataset_;
    std::vector<std::int64_t> indices_;
};

struct RandomSplitOptions {
    std::uint64_t seed = 0;  // of the order
};
// Splits the numbers from 0 to n - 1, in random order, into parts of these lengths, which add up to n, or of
// these shares, which add up to 1: then each part has the whole part of n * share, and the first parts one
// more until all are distributed. Error(value) for other lengths and for a share outside of [0, 1].
[[nodiscard]] std::vector<std::vector<std::int64_t>> random_split(std::int64_t n,
                                                                  const std::vector<Scalar>& lengths,
                                                                  const RandomSplitOptions& options = {});
// Splits a data set in the same way. The parts share it.
template <IndexedDataset D>
[[nodiscard]] std::vector<Subset<D>> random_split(D dataset, const std::vector<Scalar>& lengths,
                                                  const RandomSplitOptions& options = {}) {
    const std::int64_t size = dataset.size();
    return Subset<D>::split(std::move(dataset), random_split(size, lengths, options));
}
// Splits a data set in memory, with copies of the samples.
[[nodiscard]] std::vector<Dataset> random_split(const Dataset& dataset, const std::vector<Scalar>& lengths,
                                                const RandomSplitOptions& options = {});

// The samples of several data sets of one type, one data set after another.
template <IndexedDataset D> class ConcatDataset {
public:
    // Error(value) if there is no data set.
    explicit ConcatDataset(std::vector<D> datasets)
        : datasets_(std::move(datasets)), offsets_(detail::offsets_of(sizes())) {}
    [[nodiscard]] std::int64_t size() const { return offsets_.back(); }
    [[nodiscard]] const std::vector<D>& datasets() const { return datasets_; }
    // All throw Error(value) unless 0 <= i < size().
    [[nodiscard]] decltype(auto) get(std::int64_t i) const requires MapDataset<D> {
        const std::size_t which = dataset_at(i);
        return datasets_[which].get(i - offsets_[which]);
    }
    [[nodiscard]] Tensor image(std::int64_t i) const requires LazyDataset<D> {
        const std::size_t which = dataset_at(i);
        return datasets_[which].image(i - offsets_[which]);
    }
    [[nodiscard]] std::int64_t label(std::int64_t i) const requires LazyDataset<D> {
        const std::size_t which = dataset_at(i);
        return datasets_[which].label(i - offsets_[which]);
    }

private:
    [[nodiscard]] std::vector<std::int64_t> sizes() const {
        std::vector<std::int64_t> sizes;
        for (const D& dataset : datasets_) sizes.push_back(dataset.size());
        return sizes;
    }
    [[nodiscard]] std::size_t dataset_at(std::int64_t i) const {
        detail::check_index("ConcatDataset", i, size());
        return std::size_t(std::upper_bound(offsets_.begin(), offsets_.end(), i) - offsets_.begin() - 1);
    }
    std::vector<D> datasets_;
    std::vector<std::int64_t> offsets_;
};

// Rows of tensors as samples: get(i) returns x[i] of each tensor.
class TensorDataset {
public:
    // Error(value) if there is no tensor or one is undefined, Error(shape) if first sizes differ,
    // Error(device) for a tensor that is not on the CPU.
    explicit TensorDataset(Tensors tensors);
    [[nodiscard]] std::int64_t size() const { return tensors_[0].size(0); }
    [[nodiscard]] const Tensors& tensors() const { return tensors_; }
    // Views. Error(value) unless 0 <= i < size().
    [[nodiscard]] Tensors get(std::int64_t i) const;

private:
    Tensors tensors_;
};

}  // namespace mezzo::data

#pragma GCC visibility pop
