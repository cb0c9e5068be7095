// The settings that shape a training, as names and texts: stored with a checkpoint and compared when it is
// resumed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <mezzo/mezzo.h>

namespace training {

using Settings = std::vector<std::pair<std::string, std::string>>;

// uint8 [n], as it lies in a checkpoint.
mezzo::Tensor to_tensor(const Settings& settings);
// Throws std::runtime_error that lists every difference when a training with settings `then`, read from
// `path`, cannot go on with those of `now`.
void check_same_settings(const mezzo::Tensor& then, const Settings& now, const std::string& path);

// An entry that the program has put into its checkpoint, which was read from `path`.
const mezzo::Tensor& entry(const mezzo::io::Checkpoint& checkpoint, const std::string& path,
                           const char* name);

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
