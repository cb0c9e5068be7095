// The initial weights of language models.
#pragma once

#include "core/internal.h"
#include "mezzo/module.h"

namespace mezzo::nn {

// Initialises matrices with N(0, stddev) and vectors with 0; normalisations are not changed.
MEZZO_INTERNAL void normal_weights(Module& module, double stddev);

}  // namespace mezzo::nn
