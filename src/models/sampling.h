// Checks of generate()'s sampling options.
#pragma once

#include "mezzo/models/generate.h"

namespace mezzo::nn {

// Throws Error(value), which begins with `op`, for options out of range.
void check_sampling(const char* op, const SamplingOptions& options);

}  // namespace mezzo::nn
