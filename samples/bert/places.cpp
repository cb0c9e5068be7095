#include "bert/places.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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

// Creates the file that saving begins with, and removes it. That fails without permission, with a name that
// is too long, or without space for another file. If the file exists, another program is using it or one that
// was killed has left it; it stays.
void try_partial(const char* option, const fs::path& file) {
    const std::string partial = file.string() + ".mezzo-partial";
    const int descriptor = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno != EEXIST)
        refuse(option, file.string(), std::string("cannot be written: ") + std::strerror(errno));
    if (descriptor < 0) return;
    close(descriptor);
    unlink(partial.c_str());
}

// Throws if there is something other than a regular file where a file is to be written.
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
    for (const char* const name : model_files) check_replaceable("--save", fs::path(folder) / name);
    try_partial("--save", fs::path(folder) / model_files[0]);
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
        try_partial("--checkpoint", file);
    }
    if (options.resume && fs::exists(options.checkpoint)) mezzo::io::SafeTensors header(options.checkpoint);
    if (!options.config.empty()) static_cast<void>(mezzo::io::load_bert_config(options.config));
    if (!options.trace.empty()) program::require_writable("--trace", options.trace);
}

}  // namespace bert
