// Rank of a process among all processes of its program, and among those of its machine.
#pragma once

namespace mezzo::distributed {

struct RankInfo {
    int rank = 0, size = 1;              // among all
    int local_rank = 0, local_size = 1;  // among those of this machine
};

}  // namespace mezzo::distributed
