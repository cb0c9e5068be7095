// The random stream as kernels read it.
#pragma once

#include "core/capture.h"
#include "core/philox.h"
#include "cuda/kernel.cuh"

namespace mezzo::cuda {

struct RandomStream {
    std::uint64_t seed, offset;
    const RandomState*
        start;  // in a captured step: where the run's stream starts, with offset relative to it

    __device__ PhiloxWords block(std::int64_t i) const {
        const std::uint64_t counter = offset + static_cast<std::uint64_t>(i);
        return start == nullptr ? philox(seed, counter) : philox(start->seed, start->offset + counter);
    }
};

// The stream of an op's attributes. Every kernel that draws takes it from here, so that a captured
// step draws new numbers in each replay.
inline RandomStream stream_of(const RandomState& stream) {
    const StepGraph* const graph = StepGraph::capturing();
    if (graph == nullptr) return {stream.seed, stream.offset, nullptr};
    return {stream.seed, stream.offset - graph->start().offset, graph->random()};
}

}  // namespace mezzo::cuda
