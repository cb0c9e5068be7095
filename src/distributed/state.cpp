#include "mezzo/distributed/state.h"

#include <bit>
#include <exception>
#include <filesystem>

#include "core/fnv1a.h"
#include "distributed/rank_checks.h"

namespace mezzo::distributed {

namespace {

std::vector<std::int64_t> bits_of(const RandomState& state) {
    return {std::bit_cast<std::int64_t>(state.seed), std::bit_cast<std::int64_t>(state.offset)};
}

std::vector<RandomState> gather(const Group& group, const RandomState& mine) {
    const auto bits = group.all_gather(Tensor::from(bits_of(mine), {2})).to_vector<std::int64_t>();
    std::vector<RandomState> states;
    for (std::size_t i = 0; i < bits.size(); i += 2)
        states.push_back({std::bit_cast<std::uint64_t>(bits[i]), std::bit_cast<std::uint64_t>(bits[i + 1])});
    return states;
}

// Numbers that differ between two checkpoints of one training: a digest of names, shapes and counters, and
// the position.
std::vector<std::int64_t> fingerprint(const io::Checkpoint& checkpoint) {
    Fnv1a digest;
    const auto add = [&](const auto& numbers) {
        for (const std::int64_t number : numbers) digest.add(std::uint64_t(number));
    };
    for (const StateDict* state :
         {&checkpoint.model, &checkpoint.optimizer, &checkpoint.scaler, &checkpoint.extra})
        for (const auto& [name, value] : *state) {
            digest.add(name);
            add(value.shape());
            if (value.dtype() == int64 && value.numel() < 100) add(value.to_vector<std::int64_t>());
        }
    add(bits_of(checkpoint.random));
    return {std::bit_cast<std::int64_t>(digest.value()), checkpoint.position.epoch,
            checkpoint.position.samples};
}

}  // namespace

void manual_seed(const Group& group, std::uint64_t seed) {
    mezzo::manual_seed(seed + std::uint64_t(group.rank()));
}

void together(const Group& group, const std::string& message, const autograd::Callback<void()>& work) {
    std::exception_ptr mine;
    try {
        work();
    } catch (...) {
        mine = std::current_exception();
    }
    bool all = false;
    try {
        all = group.all(mine == nullptr);
    } catch (...) {
        if (!mine) throw;  // otherwise this rank's own error is the cause
    }
    if (mine) std::rethrow_exception(mine);
    if (!all) group.impl().heard_of_failure();
    check(all, ErrorKind::io, message);
}

void save_checkpoint(const Group& group, const std::string& path, const io::Checkpoint& checkpoint) {
    if (group.size() == 1) return io::save_checkpoint(path, checkpoint);
    const std::vector<RandomState> states = gather(group, checkpoint.random);
    together(group, "save_checkpoint: " + path + ": rank 0 could not write it; its error says why", [&] {
        if (!group.leader()) return;
        io::Checkpoint whole = checkpoint;
        whole.random_states = states;
        io::save_checkpoint(path, whole);
    });
}

io::Checkpoint load_checkpoint(const Group& group, const std::string& path) {
    io::Checkpoint checkpoint;
    together(group,
             "load_checkpoint: " + path +
                 ": another rank could not read it; all ranks read the same file, in a folder "
                 "that all machines share",
             [&] { checkpoint = io::load_checkpoint(path); });
    const Tensor mine = Tensor::from(fingerprint(checkpoint), {3}), all = group.all_gather(mine);
    const auto read = all.to_vector<std::int64_t>(), here = mine.to_vector<std::int64_t>();
    for (std::size_t i = 0; i < read.size(); ++i)
        check(read[i] == here[i % 3], ErrorKind::io, "load_checkpoint: ", path, ": rank ", i / 3,
              " has read another file than rank ", group.rank(),
              "; the folder must be one that all machines share");
    checkpoint.random = checkpoint.random_of({.rank = group.rank(), .size = group.size()});
    checkpoint.random_states.clear();  // they would be stale once `random` has moved on
    return checkpoint;
}

void require_same(const Group& group, const StateDict& tensors) {
    if (group.size() > 1) require_same_values(tensors, group.impl());
}

bool checkpoint_exists(const Group& group, const std::string& path) {
    std::error_code unknown;
    const bool here = std::filesystem::exists(path, unknown), any = group.any(here);
    check(group.all(here == any), ErrorKind::io, "checkpoint_exists: ", path, ": ", here ? "is" : "is not",
          " there on rank ", group.rank(),
          ", unlike on other ranks; the folder must be one that all machines share");
    return any;
}

}  // namespace mezzo::distributed
