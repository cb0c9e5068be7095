// The initial weights of language models.
#pragma once

#include "mezzo/module.h"

namespace mezzo::nn {

// Matrices N(0, stddev), vectors 0; normalisations stay as they are.
void normal_weights(Module& module, double stddev);

}  // namespace mezzo::nn
