#include "bert/places.h"

#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>

#include "bert/setup.h"
#include "program.h"

namespace fs = std::filesystem;

namespace bert {

namespace {

[[noreturn]] void refuse(const char* option, const std::string& path, const std::string& why) {
    throw std::runtime_error(fmt::format("{}: {}: {}", option, path, why));
}

// A file that is to be written there replaces a file, and nothing else.
void check_replaceable(const char* option, const fs::path& file) {
    std::error_code error;
    const fs::file_status status = fs::status(file, error);
    if (fs::exists(status) && !fs::is_regular_file(status))
        refuse(option, file.string(),
               fs::is_directory(status) ? "is a folder, not a file" : "is no regular file");
}

void check_save(const std::string& folder) {
    std::error_code error;
    if (fs::exists(folder, error) && !fs::is_directory(folder, error))
        refuse("--save", folder, "is no folder; model.safetensors and other files are to go into one");
    fs::create_directories(folder, error);
    if (error) refuse("--save", folder, "cannot be made: " + error.message());
    program::require_writable("--save", folder);
    for (const char* const name : model_files) check_replaceable("--save", fs::path(folder) / name);
}

}  // namespace

void check_places(const Options& options) {
    if (!options.save.empty()) check_save(options.save);
    if (!options.checkpoint.empty()) {
        const fs::path file = options.checkpoint, parent = file.parent_path();
        std::error_code error;
        const fs::path folder = parent.empty() ? fs::path(".") : parent;
        if (!fs::is_directory(folder, error))
            refuse("--checkpoint", options.checkpoint, "there is no folder " + folder.string());
        check_replaceable("--checkpoint", file);
        program::require_writable("--checkpoint", folder);
    }
    if (!options.trace.empty()) program::require_writable("--trace", options.trace);
}

}  // namespace bert
