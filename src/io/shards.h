// Reads the index of a model that is split into several safetensors files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mezzo::io {

// Returns pairs of file name and tensor name, sorted. Throws Error(io) unless all file names are in the
// folder of the index.
std::vector<std::pair<std::string, std::string>> parse_shard_index(std::string_view text,
                                                                   const std::string& where);

}  // namespace mezzo::io
