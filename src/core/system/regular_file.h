// Opening files whose names come from the user.
#pragma once

#include <cstdint>
#include <string>

#include "core/internal.h"

namespace mezzo {

struct RegularFile {
    int descriptor = -1;  // the caller closes it
    std::uint64_t bytes = 0;
};

// Opens a regular file for reading. Throws Error(io), in the name of op, for anything else: named pipes
// (without waiting for a writer), devices, folders, and files that cannot be opened.
MEZZO_INTERNAL RegularFile open_regular(const char* op, const std::string& path);

}  // namespace mezzo
