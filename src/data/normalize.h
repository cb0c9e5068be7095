// Bytes as normalised numbers.
#pragma once

#include "mezzo/transforms.h"

namespace mezzo::data {

// Throws, in the name of op, what normalize() does for its options.
void check_normalization(const char* op, const NormalizeOptions& options);
// ... and where there are other numbers of values than channels.
void check_channels(const char* op, const NormalizeOptions& options, std::int64_t channels);

// One table of 256 numbers per channel, or one for all of them.
class Normalizer {
public:
    explicit Normalizer(const NormalizeOptions& options);
    // Writes the elements first, first + 1, ... of `to`, whose dtype is that of the options and whose last
    // dimension is that of the channels; `first` is the first element of a pixel.
    void write(const std::uint8_t* from, std::int64_t count, const Tensor& to, std::int64_t first) const;

private:
    std::size_t channels_;
    Tensor tables_;  // [channels, 256]
};

}  // namespace mezzo::data
