// Which samples an epoch has, and in which order.
#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/sampler.h"

namespace mezzo::data {

// int64 [n] on the CPU; undefined: as stored. `op` begins errors. Throws Error(dtype) or Error(value) for a sampler's order
// that is none of a data set of so many samples.
Tensor epoch_order(const char* op, std::int64_t samples, const std::optional<Sampler>& sampler, bool shuffle,
                   std::uint64_t seed, std::int64_t epoch);

// A permutation by Fisher and Yates from a Philox stream of its own: it depends on the arguments only.
Tensor permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch);

}  // namespace mezzo::data
