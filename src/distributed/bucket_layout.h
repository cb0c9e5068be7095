// Which gradients travel together, and where each lies in its bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/device.h"
#include "mezzo/dtype.h"

namespace mezzo::distributed {

// What a layout depends on of a leaf.
struct LeafKind {
    std::int64_t numel = 0;
    Dtype dtype = float32;
    Device device = {};
    bool trained = true;  // requires grad; others travel in no bucket
    friend bool operator==(const LeafKind&, const LeafKind&) = default;
};

struct OrderedLeaf {
    std::uint32_t place;
    bool adjoins =
        false;  // its elements lie directly behind those of the leaf before, and the gradient's shall, too
};

struct BucketLayout {
    struct Part {
        std::uint32_t place;  // of the leaf
        std::int64_t offset;  // in elements
    };
    Dtype dtype = float32;
    Device device = {};
    std::vector<Part> parts = {};
    // Behind the gradients one number per part: whether the rank has a gradient. Reduced like the rest, it tells whether any rank has.
    std::int64_t flags = 0;
    std::int64_t elements = 0;  // with the flags and padding: a multiple of the number of ranks
};

struct BucketSizes {
    std::int64_t first_bytes, bytes;
    int ranks;
};

// Buckets of one dtype and device each, in the order of their last leaves. A bucket ends before the leaf that would make it larger than allowed; leaves that
// adjoin stay together. Gradients begin at multiples of 256 bytes unless they adjoin.
std::vector<BucketLayout> lay_out(const std::vector<OrderedLeaf>& order, const std::vector<LeafKind>& leaves,
                                  const BucketSizes& sizes);

}  // namespace mezzo::distributed
