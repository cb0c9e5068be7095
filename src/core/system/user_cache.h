// Small text files in the user's cache folder, for measurements on this machine that the next process can
// reuse. Nothing here throws, because the library works without the files. Readers have to check the content.
#pragma once

#include <string>

namespace mezzo {

// MEZZO_CACHE if it is set; otherwise mezzo in XDG_CACHE_HOME if that is an absolute path, or in .cache of
// HOME. "" if there is none, or MEZZO_CACHE is "off" or empty.
std::string user_cache_folder();

// The text of a file there; "" if it cannot be read, is no regular file, or is larger than 1 MiB.
std::string read_user_cache(const char* name);

// Replaces the file as a whole, and creates the folder if needed. On any error the file stays as it was.
void write_user_cache(const char* name, const std::string& text);

}  // namespace mezzo
