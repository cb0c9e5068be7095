// Divides the elements of a list of tensors between the ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/shard_sync.h"

namespace mezzo::distributed {

// The tensors are laid out one behind the other, each at a multiple of 256 elements; every rank owns an equal
// range of this layout, of a multiple of 256 elements. So each rank has at most one part of a tensor, and all
// ranks have equally many elements, up to rounding. Depends only on the sizes.
class Partition {
public:
    Partition() = default;
    Partition(const std::vector<std::int64_t>& numels, int ranks);
    int ranks() const { return ranks_; }
    // Returns the part of the tensor that the rank owns; its count is 0 if there is none.
    optim::LocalShard part(std::size_t tensor, int rank) const;

private:
    std::vector<std::int64_t> numels_, starts_;
    std::int64_t range_ = 0;  // of a rank
    int ranks_ = 1;
};

}  // namespace mezzo::distributed
