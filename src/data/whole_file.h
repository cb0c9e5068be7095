// Reading a file at once.
#pragma once

#include <string>
#include <vector>

namespace mezzo::data {

// Throws Error(io), in the name of op, for what is no regular file, cannot be read, or has more than 1 GiB.
std::vector<unsigned char> whole_file(const char* op, const std::string& path);

}  // namespace mezzo::data
