// StopSignals: SIGTERM and SIGINT end a training after the current step.
//
//   const training::StopSignals signals;
//   for (const auto& [x, y] : loader) {
//       loss = train(x, y);
//       if (signals.received()) break;  // then save a checkpoint
//   }
#pragma once

#include "mezzo/cpp20.h"
#include "mezzo/distributed/group.h"

#pragma GCC visibility push(default)

namespace mezzo::training {

// While an object lives, SIGTERM and SIGINT do not end the program; the training calls received() after each
// step, saves a checkpoint and ends. A signal stays recorded until clear(), also for a StopSignals that is
// made later. Use it in the main thread, because signal handlers belong to the process. The old handlers are
// restored when the last object is destroyed.
class StopSignals {
public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    [[nodiscard]] bool received() const;
    // Whether any rank has received a signal; the same result on all ranks. Collective.
    [[nodiscard]] bool received(const distributed::Group& group) const { return group.any(received()); }

    // The last signal, SIGTERM or SIGINT; 0: none. A program that ends because of it should exit with 128 +
    // last().
    [[nodiscard]] static int last();
    static void clear();
};

}  // namespace mezzo::training

#pragma GCC visibility pop
