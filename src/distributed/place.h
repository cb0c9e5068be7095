// Where a process stands among those of its program.
#pragma once

namespace mezzo::distributed {

struct Place {
    int rank = 0, size = 1;              // among all
    int local_rank = 0, local_size = 1;  // among those of this machine
};

}  // namespace mezzo::distributed
