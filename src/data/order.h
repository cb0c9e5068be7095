// Which samples an epoch has, and in which order.
#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/sampler.h"
#include "mezzo/shard.h"

namespace mezzo::data {

// int64 [n] on the CPU; undefined: as stored. `op` begins errors. Throws Error(dtype) or Error(value) for a sampler's order
// that is none of a data set of so many samples.
Tensor epoch_order(const char* op, std::int64_t samples, const std::optional<Sampler>& sampler, bool shuffle,
                   std::uint64_t seed, std::int64_t epoch);

// Throws Error(value) unless epoch and samples are not negative, the epoch is below 2^62, and there are so many
// samples; samples below 0: not known.
void check_position(const char* op, const LoaderPosition& position, std::int64_t samples);

// A permutation by Fisher and Yates from a Philox stream of its own: it depends on the arguments only. Error(memory) if there is too
// little memory for n indices.
Tensor permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch);

}  // namespace mezzo::data
