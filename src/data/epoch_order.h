// Order of the samples in an epoch, and which samples it has.
#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/data/sampler.h"
#include "mezzo/shard.h"

namespace mezzo::data {

// Returns int64 [n] on the CPU; undefined means the stored order. Error messages begin with `op`. Throws
// Error(dtype) or Error(value) if a sampler's order is not one for this many samples.
Tensor epoch_order(const char* op, std::int64_t samples, const std::optional<Sampler>& sampler, bool shuffle,
                   std::uint64_t seed, std::int64_t epoch);

// Throws Error(value) unless epoch and samples are not negative, the epoch is below 2^62, and the data set
// has that many samples; `samples` below 0: unknown.
void check_position(const char* op, const LoaderPosition& position, std::int64_t samples);

// Returns a permutation by Fisher and Yates from its own Philox stream: it depends only on the arguments.
// Throws Error(memory) if there is too little memory for n indices.
Tensor permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch);

}  // namespace mezzo::data
