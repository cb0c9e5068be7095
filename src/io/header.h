// The header of a safetensors file, as text and as a list.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "mezzo/io.h"

namespace mezzo::io {

// A dtype of the file format.
struct FileDtype {
    const char* name;
    int bits;
    std::optional<Dtype> dtype = {};  // none: mezzo has no such tensors
};
const FileDtype* find_file_dtype(std::string_view name);
// Both describe a dtype in files: its name, and its rank. Tensors of the highest rank come first in the data.
const char* file_dtype_name(Dtype dtype);
int file_dtype_rank(Dtype dtype);

inline constexpr std::uint64_t max_header_bytes = 100000000;  // the reference implementation's limit

struct Header {
    std::vector<TensorInfo> tensors;  // in the order of the data
    Metadata metadata;
};
// Sorts by data offset; tensors without elements go before the tensor with elements at the same offset.
void sort_by_place(std::vector<TensorInfo>& tensors);
// Reads and checks the header of a file that has `data_bytes` after it. Error messages begin with `where`.
Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& where);
// Returns the header's text for tensors in the order of the data, padded so that the data begin at a multiple
// of 8.
std::string header_text(const Header& header);

}  // namespace mezzo::io
