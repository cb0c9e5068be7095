// Where results are to go: looked at before the work, not after it.
#pragma once

#include <string>
#include <vector>

#include "bert/options.h"

namespace bert {

// Makes the folder of --save. Throws std::exception where --save, --checkpoint or --trace cannot be written, or
// what --resume and --config name cannot be used; the rest of a checkpoint is for later.
void check_places(const Options& options);

}  // namespace bert
