// Runs a training program as one of several ranks, and ends it on request.
#pragma once

#include <mezzo/mezzo.h>

namespace training {

// Joins the ranks that mezzo-run or another launcher has started; a single process is rank 0 of 1. Afterwards
// ranks other than 0 print nothing on standard output, where they would repeat rank 0. threads: of the CPU;
// 0: as many as there are processors for this rank.
mezzo::distributed::Group join_ranks(int threads);

// Converts a loss that is a mean over this rank's rows to its part of the mean over all ranks.
inline mezzo::Tensor weighted(const mezzo::Tensor& loss, double weight) {
    return weight == 1 ? loss : loss * weight;
}

// Returns the exit code of a program that was stopped by a signal: 128 and the number of the signal, as a
// shell reports it.
int exit_code_when_stopped();

}  // namespace training
