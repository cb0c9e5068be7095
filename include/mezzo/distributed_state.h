// What a training by several ranks starts from and is resumed from: random streams and checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include "mezzo/distributed.h"
#include "mezzo/io.h"

#pragma GCC visibility push(default)

namespace mezzo::distributed {

// manual_seed(seed + rank): the ranks draw different numbers, such as dropout masks, and rank 0 those of a program
// that was started alone. DataParallel gives all ranks the weights of rank 0, so these may be drawn from it, too.
// What all ranks must draw alike takes mezzo::manual_seed(seed).
void manual_seed(const Group& group, std::uint64_t seed);

// io::save_checkpoint() by rank 0, with the random states of all ranks in place of those in `checkpoint`. Of the
// other ranks' checkpoints only `random` is read: they are to pass what they have, or {}. Collective; when it
// returns, the file is there. Throws on all ranks: on rank 0 what saving throws, on the others Error(io) that
// says so. In a group of one rank it is io::save_checkpoint().
void save_checkpoint(const Group& group, const std::string& path, const io::Checkpoint& checkpoint);

// io::load_checkpoint() by every rank, from a folder that all of them see; `random` is what this rank is to go on
// with (Checkpoint::random_of), so a checkpoint of any number of ranks fits. Collective. Throws on all ranks
// where one of them cannot read the file, and Error(io) where the ranks have read different ones. In a group of one
// rank `random` is set likewise.
[[nodiscard]] io::Checkpoint load_checkpoint(const Group& group, const std::string& path);

// Whether there is something at the path. Collective: Error(io) on all ranks where some of them see it and others
// do not.
[[nodiscard]] bool checkpoint_exists(const Group& group, const std::string& path);

// Compares what the ranks hold, bit for bit: parameters, or the state_dict() of an optimizer or a scaler. Reads all of it on the host. Collective.
// Error(state) on all ranks, with the first name whose shape, dtype or values differ.
void require_same(const Group& group, const StateDict& tensors);

}  // namespace mezzo::distributed

#pragma GCC visibility pop
