// Shards of batches for a training with several ranks, and the position of a training in its data.
//
//   const data::Shard shard{.rank = 1, .size = 4};
//   const auto [first, count, weight] = shard.slice(64);
//   y = x.slice(0, first, first + count);  // rows 16 to 31
#pragma once

#include <cstdint>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// Consecutive rows of a batch, and the weight of their mean loss.
struct ShardRows {
    std::int64_t first = 0, count = 0;
    // count * ranks / rows of the whole batch: makes the mean over the ranks the mean over all rows
    double weight = 1;
};

// The shard of rank `rank` out of `size` ranks.
struct Shard {
    int rank = 0, size = 1;

    // This rank's rows of a batch of `rows` rows over all ranks. The slices, in rank order, make up the
    // batch; they differ by one row at most, and the first ranks have the longer ones. If there are fewer
    // rows than ranks, the last ranks take the last row with weight 0, so that they make the same steps.
    // Weights are 1 if `rows` is a multiple of `size`, and add up to `size` otherwise. Throws Error(value)
    // for negative rows, and for a shard whose rank is not in [0, size).
    [[nodiscard]] ShardRows slice(std::int64_t rows) const;
};

// Position of a training in its data, in samples; independent of the number of ranks and the batch size.
struct LoaderPosition {
    std::int64_t epoch = 0;
    std::int64_t samples = 0;  // samples of this epoch that were returned so far, over all ranks
    friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

}  // namespace mezzo::data

#pragma GCC visibility pop
