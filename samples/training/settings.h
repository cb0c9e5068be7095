// Settings that determine a training, as names and texts: a checkpoint stores them, and they are compared
// when it is resumed (mezzo/checkpoint.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <mezzo/mezzo.h>

namespace training {

using Settings = mezzo::io::Metadata;

// FNV-1a of 64 bits (Fowler, Noll, Vo) over texts of any length, each preceded by its length.
class Digest {
public:
    void add(std::string_view text);
    std::string text() const;  // 16 hexadecimal digits

private:
    void add_bytes(std::string_view bytes);
    std::uint64_t value_ = 0xcbf29ce484222325u;
};
// Returns the number of tensors, and a digest of their names, dtypes and values; "none" for an empty state.
std::string digest_of(const mezzo::StateDict& state);

}  // namespace training
