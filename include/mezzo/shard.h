// What the ranks of a training by several processes share of its data: which rows of a batch are whose, and
// how far the training has come.
#pragma once

#include <cstdint>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// Consecutive rows of a batch, and what the mean of a loss over them counts.
struct ShardRows {
    std::int64_t first = 0, count = 0;
    double weight =
        1;  // count * ranks / rows of the whole batch: the mean over the ranks is then that over all rows
};

// One of `size` ranks.
struct Shard {
    int rank = 0, size = 1;

    // This rank's part of a batch that has so many rows over all ranks. In the order of the ranks the slices
    // make up the batch; they differ by one row at most, and the first ranks have the longer ones. With fewer
    // rows than ranks the last ones take the last row with weight 0, so that they do the same steps. Weights
    // are 1 where `rows` is a multiple of `size`, and add up to `size` otherwise. Throws Error(value) for
    // negative rows and a shard whose rank is not in [0, size).
    [[nodiscard]] ShardRows slice(std::int64_t rows) const;
};

// Where a training stands in its data, in samples: a number of ranks or a size of batches has no part in it.
struct LoaderPosition {
    std::int64_t epoch = 0;
    std::int64_t samples = 0;  // of this epoch that have been handed out, over all ranks
    friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

}  // namespace mezzo::data

#pragma GCC visibility pop
