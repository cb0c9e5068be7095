// Checks before the training whether files can be written. `option` begins the errors.
#pragma once

#include <filesystem>
#include <string>

namespace training {

// Throws std::runtime_error with the option, the path and the reason.
[[noreturn]] void refuse(const char* option, const std::string& path, const std::string& why);
// Creates the temporary file that saving begins with, and removes it. That fails without permission, with a
// name that is too long, or without space for another file. An existing file stays: another program is using
// it, or a killed program has left it.
void try_partial(const char* option, const std::filesystem::path& file);
// Throws if the path exists and is not a regular file.
void check_replaceable(const char* option, const std::filesystem::path& file);
// Throws if save_safetensors() or save_checkpoint() could not write the file.
void check_file(const char* option, const std::filesystem::path& file);

}  // namespace training
