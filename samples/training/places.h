// Checks, before the work and not after it, whether files can be written. `option` begins the errors.
#pragma once

#include <filesystem>
#include <string>

namespace training {

// Throws std::runtime_error.
[[noreturn]] void refuse(const char* option, const std::string& path, const std::string& why);
// Creates the file that saving begins with, and removes it. That fails without permission, with a name that
// is too long, or without space for another file. If the file exists, another program is using it or one that
// was killed has left it; it stays.
void try_partial(const char* option, const std::filesystem::path& file);
// Throws if there is something other than a regular file where a file is to be written.
void check_replaceable(const char* option, const std::filesystem::path& file);
// Throws where a file cannot be written that save_safetensors() or save_checkpoint() is to write.
void check_file(const char* option, const std::filesystem::path& file);

}  // namespace training
