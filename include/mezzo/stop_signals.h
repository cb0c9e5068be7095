// The end of a training on request: SIGTERM and SIGINT end it after the step that is under way.
#pragma once

#include "mezzo/cpp20.h"
#include "mezzo/distributed.h"

#pragma GCC visibility push(default)

namespace mezzo::training {

// While one exists, SIGTERM and SIGINT do not end the program; the training asks after each step whether one
// has come, saves a checkpoint and ends. One that has come stays noted, also for a StopSignals that is made
// later, until clear(). For the main thread: signal handlers belong to the process. They are put back when
// the last object is gone.
class StopSignals {
public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    [[nodiscard]] bool received() const;
    // Whether a signal has come to any rank; the same answer on all ranks. Collective.
    [[nodiscard]] bool received(const distributed::Group& group) const { return group.any(received()); }

    // The signal that came last, SIGTERM or SIGINT; 0: none. A program that it has stopped exits with 128 +
    // last().
    [[nodiscard]] static int last();
    static void clear();
};

}  // namespace mezzo::training

#pragma GCC visibility pop
