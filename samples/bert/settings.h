// The settings that shape a training, as names and texts: stored with a checkpoint and compared when it is
// resumed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <mezzo/mezzo.h>

#include "bert/options.h"

namespace bert {

struct Setup;

using Settings = std::vector<std::pair<std::string, std::string>>;

// Options by their names, the model's sizes, and digests of texts, vocabulary and weights that the training
// starts from.
Settings settings_of(const Options& options, const Setup& setup, const mezzo::StateDict& weights);

// uint8 [n], as it lies in a checkpoint.
mezzo::Tensor to_tensor(const Settings& settings);
// Throws std::runtime_error that lists every difference when a training with settings `then`, read from
// `path`, cannot go on with those of `now`.
void check_same_settings(const mezzo::Tensor& then, const Settings& now, const std::string& path);

// FNV-1a of 64 bits (Fowler, Noll, Vo) over texts of any length, each with its length.
class Digest {
public:
    void add(std::string_view text);
    std::string text() const;  // 16 hexadecimal digits

private:
    void add_bytes(std::string_view bytes);
    std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace bert
