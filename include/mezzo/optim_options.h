// The options of the optimizers whose update is one kernel; their table declares them. Every option must be
// finite, and >= 0 unless stated otherwise.
//
//   const optim::AdamWOptions slow{.lr = 1e-5, .beta2 = 0.98};
//   optim::AdamW adam(net.parameters(), slow);
//   optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <iosfwd>

#pragma GCC visibility push(default)

namespace mezzo::optim {

#include "mezzo/optimizers.def"

// AdamWOptions(lr=0.001, beta1=0.9, …).
#define MEZZO_OPTIMIZER(name) std::ostream& operator<<(std::ostream& out, const name##Options& options);
#include "mezzo/optimizers.def"

}  // namespace mezzo::optim

#pragma GCC visibility pop
