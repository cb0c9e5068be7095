// The random stream as kernels read it.
#pragma once

#include "core/capture.h"
#include "core/philox.h"
#include "cuda/kernel.cuh"

namespace mezzo::cuda {

struct RandomStream {
    std::uint64_t seed, offset;
    // In a captured step: where the stream of the run starts; offset is relative to it. Otherwise null.
    const RandomState* start;

    __device__ PhiloxWords block(std::int64_t i) const {
        const std::uint64_t counter = offset + static_cast<std::uint64_t>(i);
        return start == nullptr ? philox(seed, counter) : philox(start->seed, start->offset + counter);
    }
};

// The stream of an op's attributes. Every kernel that draws random numbers must take it from here, so that a
// captured step draws new ones in each replay.
inline RandomStream stream_of(const RandomState& stream) {
    const StepGraph* const graph = StepGraph::capturing();
    if (graph == nullptr) return {stream.seed, stream.offset, nullptr};
    return {stream.seed, stream.offset - graph->start().offset, graph->random()};
}

}  // namespace mezzo::cuda
