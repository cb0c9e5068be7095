// Checks, before the work and not after it, whether its results can be written.
#pragma once

#include <string>
#include <vector>

#include "bert/options.h"

namespace bert {

// Makes the folder of --save. Throws std::exception where --save, --checkpoint or --trace cannot be written,
// or what --resume and --model-config name cannot be used; of a checkpoint only the header is read here.
void check_places(const Options& options);

}  // namespace bert
