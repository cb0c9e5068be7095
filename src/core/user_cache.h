// Small text files in the user's cache folder: what a process found out about this machine, for the next one.
// A cache is a convenience: nothing here throws, and whoever reads a file checks what it says.
#pragma once

#include <string>

namespace mezzo {

// MEZZO_CACHE if it is set, none if that is "off" or empty; otherwise mezzo in XDG_CACHE_HOME, or in .cache
// of HOME.
// "" if there is none.
std::string user_cache_folder();

// The text of a file there; "" if there is none, it is no ordinary file, or larger than 1 MiB.
std::string read_user_cache(const char* name);

// Replaces the file as a whole, creating the folder; on any error it stays as it was.
void write_user_cache(const char* name, const std::string& text);

}  // namespace mezzo
