#include "core/random_offset.h"

#include <mutex>

#include "core/step_recorder.h"

namespace mezzo {
namespace {

// The process's random stream. Its initial state is the same in every process, so that a program that never
// seeds is repeatable.
std::mutex mutex;
RandomState state;

}  // namespace

RandomState reserve_random(std::uint64_t blocks) {
    const std::lock_guard lock(mutex);
    const RandomState start = state;
    state.offset += blocks;
    return start;
}

void return_random(RandomState start, std::uint64_t blocks) {
    const std::lock_guard lock(mutex);
    if (state.seed == start.seed && state.offset == start.offset + blocks) state.offset = start.offset;
}

void manual_seed(std::uint64_t seed) { set_random_state({.seed = seed, .offset = 0}); }

RandomState random_state() {
    const std::lock_guard lock(mutex);
    return state;
}

void set_random_state(RandomState new_state) {
    if (const StepRecorder* graph = thread_state.recorder) graph->check_random_state(new_state);
    const std::lock_guard lock(mutex);
    state = new_state;
}

}  // namespace mezzo
