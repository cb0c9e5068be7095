// Computes ranges of many tensors on their devices and reads them together.
#pragma once

#include <vector>

#include "mezzo/insight/insight.h"

namespace mezzo::insight {

class RangeTable {
public:
    // Queues the statistics of a floating tensor and returns its index in read(). Does not wait for the
    // device.
    int add(const Tensor& x);
    // Returns the ranges of all added tensors. Waits for the devices.
    std::vector<Range> read() const;
    void clear();

private:
    static constexpr std::int64_t chunk_rows = 512, columns = 4;
    struct Chunk {
        Tensor values;  // float64 [chunk_rows, columns]
        std::vector<int> places;
    };
    Chunk& chunk_on(Device device);
    std::vector<Chunk> chunks_;
    std::vector<std::int64_t> elements_;
};

// Returns the gradients of these parameters that are not finite. Waits for the devices.
std::vector<GradientRange> overflowed_of(const StateDict& parameters);

// Returns x as a contiguous tensor without history.
Tensor in_one_piece(const Tensor& x);

}  // namespace mezzo::insight
