// Checks before the training whether its results can be written.
#pragma once

#include <string>
#include <vector>

#include "bert/options.h"

namespace bert {

// Creates the folder of --save. Throws std::exception if --save, --checkpoint or --trace cannot be written,
// or if the files of --resume and --model-config cannot be used. Reads only the header of a checkpoint.
void check_places(const Options& options);

}  // namespace bert
