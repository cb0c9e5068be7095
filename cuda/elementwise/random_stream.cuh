// The random stream of a kernel.
#pragma once

#include "core/philox.h"
#include "core/step_recorder.h"
#include "cuda/kernel.cuh"

namespace mezzo::cuda {

struct RandomStream {
    std::uint64_t seed, offset;
    // Start of the stream in this run of a captured step, to which offset is relative; otherwise null.
    const RandomState* start;

    __device__ PhiloxWords block(std::int64_t i) const {
        const std::uint64_t counter = offset + static_cast<std::uint64_t>(i);
        return start == nullptr ? philox(seed, counter) : philox(start->seed, start->offset + counter);
    }
};

// philox_half() for an i that is known only when the kernel runs: indexing the words would put them into
// memory.
__device__ inline std::uint32_t half_word(const PhiloxWords& words, int i) {
    const std::uint32_t lower = (i & 2) != 0 ? words.v[1] : words.v[0];
    const std::uint32_t upper = (i & 2) != 0 ? words.v[3] : words.v[2];
    return ((i & 4) != 0 ? upper : lower) >> ((i & 1) * 16) & 0xffffu;
}

// The stream of an op's attributes. Every kernel that draws random numbers must take it from here, so that a
// captured step draws new ones in each replay.
inline RandomStream stream_of(const RandomState& stream) {
    const StepRecorder* const graph = thread_state.recorder;
    if (graph == nullptr) return {stream.seed, stream.offset, nullptr};
    return {stream.seed, stream.offset - graph->start().offset, graph->random()};
}

}  // namespace mezzo::cuda
