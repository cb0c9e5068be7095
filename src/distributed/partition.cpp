#include "distributed/partition.h"

#include <algorithm>

#include "core/round_up.h"

namespace mezzo::distributed {

namespace {

// In elements: kernels find shards as well aligned as whole tensors, and blocks of optimizer state are whole.
constexpr std::int64_t alignment = 256;

}  // namespace

Partition::Partition(const std::vector<std::int64_t>& numels, int ranks) : numels_(numels), ranks_(ranks) {
    std::int64_t end = 0;
    for (const std::int64_t n : numels) {
        starts_.push_back(end);
        end += round_up(n, alignment);
    }
    range_ = round_up(end, ranks * alignment) / ranks;
}

optim::LocalShard Partition::part(std::size_t tensor, int rank) const {
    const std::int64_t start = starts_[tensor];
    const std::int64_t from = std::max(rank * range_, start) - start,
                       to = std::min((rank + 1) * range_ - start, numels_[tensor]);
    return from < to ? optim::LocalShard{from, to - from} : optim::LocalShard{};
}

}  // namespace mezzo::distributed
