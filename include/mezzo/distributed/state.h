// Random streams and checkpoints of a training with several ranks.
//
//   distributed::manual_seed(group, 1);
//   distributed::save_checkpoint(group, "run.ckpt", {.model = net.state_dict()});
//   net.load_state_dict(distributed::load_checkpoint(group, "run.ckpt").model);
#pragma once

#include <cstdint>
#include <string>

#include "mezzo/callback.h"
#include "mezzo/distributed/group.h"
#include "mezzo/io.h"

#pragma GCC visibility push(default)

namespace mezzo::distributed {

// Calls mezzo::manual_seed(seed + rank): the ranks draw different numbers, for example for dropout masks, and
// rank 0 draws those of a single process. Weights may be initialised from it, because DataParallel broadcasts
// those of rank 0. For numbers that must be equal on all ranks call mezzo::manual_seed(seed).
void manual_seed(const Group& group, std::uint64_t seed);

// Saves the checkpoint of rank 0 by io::save_checkpoint(), with the random states of all ranks instead of
// those in `checkpoint`. The other ranks' checkpoints are read only for `random`; the rest may be empty.
// Collective; the file is complete when it returns. Throws on all ranks: on rank 0 the error of the save, on
// the others an Error(io) that reports it. In a group of one rank it is io::save_checkpoint().
void save_checkpoint(const Group& group, const std::string& path, const io::Checkpoint& checkpoint);

// Loads a checkpoint on every rank by io::load_checkpoint(), from a folder that all of them can read.
// `random` of the result is the state with which this rank resumes (Checkpoint::random_of), for a checkpoint
// of any number of ranks. Collective. Throws on all ranks if one of them cannot read the file, and Error(io)
// if the ranks have read different files. In a group of one rank `random` is set likewise.
[[nodiscard]] io::Checkpoint load_checkpoint(const Group& group, const std::string& path);

// Runs work() on every rank; if it throws on one, throws on all: on that rank its exception, on the others
// Error(io) with `message`. Collective.
void together(const Group& group, const std::string& message, const autograd::Callback<void()>& work);

// Whether the path exists. Collective. Throws Error(io) on all ranks if it exists only for some of them.
[[nodiscard]] bool checkpoint_exists(const Group& group, const std::string& path);

// Checks that all ranks hold the same tensors, bit for bit: parameters, or the state_dict() of an optimizer
// or a scaler. Copies all of them to the host. Collective. Throws Error(state) on all ranks with the first
// name whose shape, dtype or values differ.
void require_same(const Group& group, const StateDict& tensors);

}  // namespace mezzo::distributed

#pragma GCC visibility pop
