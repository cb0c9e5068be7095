// Assigns gradients to buckets, each with an offset in its bucket.
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/device.h"
#include "mezzo/dtype.h"

namespace mezzo::distributed {

// The properties of a leaf that a layout depends on.
struct LeafKind {
    std::int64_t numel = 0;
    Dtype dtype = float32;
    Device device = {};
    bool trained = true;  // requires grad; other leaves are in no bucket
    friend bool operator==(const LeafKind&, const LeafKind&) = default;
};

struct OrderedLeaf {
    std::uint32_t place;
    bool adjoins =
        false;  // its elements lie directly behind those of the leaf before, and the gradient's shall, too
};

struct BucketLayout {
    struct Entry {
        std::uint32_t place;  // index of the leaf
        std::int64_t offset;  // in elements
    };
    Dtype dtype = float32;
    Device device = {};
    std::vector<Entry> parts = {};
    // Offset of the flags behind the gradients, one number per part: 1 if the rank has a gradient, 0 if not.
    // After their reduction a flag is not 0 if any rank has a gradient.
    std::int64_t flags = 0;
    std::int64_t elements = 0;  // with flags and padding: a multiple of the number of ranks
};

struct BucketSizes {
    std::int64_t first_bytes, bytes;
    int ranks;
};

// Returns buckets of one dtype and device each, in the order of their last leaves. A bucket ends before the
// leaf that would exceed its limit; adjoining leaves stay together. Gradients begin at multiples of 256 bytes
// unless they adjoin.
std::vector<BucketLayout> lay_out(const std::vector<OrderedLeaf>& order, const std::vector<LeafKind>& leaves,
                                  const BucketSizes& sizes);

}  // namespace mezzo::distributed
