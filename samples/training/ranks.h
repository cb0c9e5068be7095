// A training program as one of several ranks, and its end on request.
#pragma once

#include <mezzo/mezzo.h>

namespace training {

// Joins the ranks that mezzo-run or another launcher has started; a program that was started alone is rank 0 of 1.
// Ranks other than 0 print nothing on standard output from now on, where they would repeat what rank 0 says.
// Threads: of the CPU; 0: as many as there are processors for this rank.
mezzo::distributed::Group join_ranks(int threads);

// A loss that is a mean over the rows of this rank, as its part of the mean over all ranks.
inline mezzo::Tensor weighted(const mezzo::Tensor& loss, double weight) {
    return weight == 1 ? loss : loss * weight;
}

// What a program ends with that has been stopped: 128 and the number of the signal, as of one that it has killed.
int exit_code_when_stopped();

}  // namespace training
