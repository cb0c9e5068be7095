// Converts bytes to normalised numbers.
#pragma once

#include "mezzo/data/transforms.h"

namespace mezzo::data {

// Throws the errors of normalize() for its options, in the name of `op`.
void check_normalization(const char* op, const NormalizeOptions& options);
// Throws Error(shape), in the name of `op`, unless mean and stddev fit the number of channels.
void check_channels(const char* op, const NormalizeOptions& options, std::int64_t channels);

// Look-up tables for normalisation: 256 numbers per channel, or one table for all channels.
class Normalizer {
public:
    explicit Normalizer(const NormalizeOptions& options);
    // Writes `count` elements of `to`, beginning with element `first`, which is the first of a pixel. `to`
    // has the options' dtype, and channels in its last dimension.
    void write(const std::uint8_t* from, std::int64_t count, const Tensor& to, std::int64_t first) const;

private:
    std::size_t channels_;
    Tensor tables_;  // [channels, 256]
};

}  // namespace mezzo::data
