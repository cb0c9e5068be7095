// Where results are to go: looked at before the work, not after it.
#pragma once

#include <string>
#include <vector>

#include "bert/options.h"

namespace bert {

// Makes the folder of --save. Throws std::runtime_error where --save, --checkpoint or --trace cannot be written,
// or --resume finds something that is no file.
void check_places(const Options& options);

}  // namespace bert
