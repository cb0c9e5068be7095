// Reads whole files.
#pragma once

#include <string>
#include <vector>

#include "core/internal.h"

namespace mezzo::io {

// Returns the bytes of a file. Throws Error(io), in the name of `op`, for a file that is not regular, cannot
// be read, or has more than 1 GiB.
MEZZO_INTERNAL std::vector<unsigned char> whole_file(const char* op, const std::string& path);

// Returns the lines of a file without their ends, "\n" or "\r\n", and without a byte order mark in front.
// Throws as whole_file().
MEZZO_INTERNAL std::vector<std::string> file_lines(const char* op, const std::string& path);

}  // namespace mezzo::io
