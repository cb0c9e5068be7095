// The settings that shape a training, as names and texts: a checkpoint has them, and is compared with them when it is
// resumed (mezzo/checkpoint.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <mezzo/mezzo.h>

namespace training {

using Settings = mezzo::io::Metadata;

// FNV-1a of 64 bits (Fowler, Noll, Vo) over texts of any length, each with its length.
class Digest {
public:
    void add(std::string_view text);
    std::string text() const;  // 16 hexadecimal digits

private:
    void add_bytes(std::string_view bytes);
    std::uint64_t value_ = 0xcbf29ce484222325u;
};
// How many tensors, and a digest of their names, dtypes and values; "none" for an empty state.
std::string digest_of(const mezzo::StateDict& state);

}  // namespace training
