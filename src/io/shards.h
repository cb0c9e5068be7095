// The index of a model that is spread over several safetensors files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mezzo::io {

// (file name, tensor name), sorted. File names are plain ones, of files beside the index.
std::vector<std::pair<std::string, std::string>> parse_shard_index(std::string_view text,
                                                                   const std::string& where);

}  // namespace mezzo::io
