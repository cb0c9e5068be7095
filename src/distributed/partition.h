// Which elements of a list of tensors belong to which rank.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/sharing.h"

namespace mezzo::distributed {

// The tensors lie one behind the other, each at a multiple of 64 elements; every rank has an equal range, of a multiple of 64 elements, of this row. So each has
// at most one part of a tensor, and all have as many elements, up to rounding. Depends on nothing but the sizes.
class Partition {
public:
    Partition() = default;
    Partition(const std::vector<std::int64_t>& numels, int ranks);
    int ranks() const { return ranks_; }
    // Count 0 where the rank has nothing of the tensor.
    optim::Part part(std::size_t tensor, int rank) const;

private:
    std::vector<std::int64_t> numels_, starts_;
    std::int64_t range_ = 0;  // of a rank
    int ranks_ = 1;
};

}  // namespace mezzo::distributed
