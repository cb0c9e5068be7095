// FNV-1a, a hash for comparing numbers and texts between processes and runs; not for strangers' input.
// http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once

#include <cstdint>
#include <string_view>

namespace mezzo {

class Fnv1a {
public:
    void add(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3u; }
    void add(std::string_view bytes) {
        for (const char byte : bytes) add(std::uint64_t(static_cast<unsigned char>(byte)));
    }
    std::uint64_t value() const { return hash_; }

private:
    std::uint64_t hash_ = 0xcbf29ce484222325u;
};

inline std::uint64_t fnv1a(std::string_view bytes) {
    Fnv1a hash;
    hash.add(bytes);
    return hash.value();
}

}  // namespace mezzo
