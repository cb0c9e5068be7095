// Opening files that others have named.
#pragma once

#include <cstdint>
#include <string>

namespace mezzo {

struct RegularFile {
    int descriptor = -1;  // the caller closes it
    std::uint64_t bytes = 0;
};

// A regular file, open for reading. Error(io), beginning with op, for what cannot be opened, and for named
// pipes, devices and folders: at once, where opening a pipe would wait for a writer.
RegularFile open_regular(const char* op, const std::string& path);

}  // namespace mezzo
