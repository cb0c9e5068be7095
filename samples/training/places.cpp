#include "training/places.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

namespace fs = std::filesystem;

namespace training {

void refuse(const char* option, const std::string& path, const std::string& why) {
    throw std::runtime_error(fmt::format("{}: {}: {}", option, path, why));
}

void try_partial(const char* option, const fs::path& file) {
    const std::string partial = file.string() + ".mezzo-partial";
    const int descriptor = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno != EEXIST)
        refuse(option, file.string(), std::string("cannot be written: ") + std::strerror(errno));
    if (descriptor < 0) return;
    close(descriptor);
    unlink(partial.c_str());
}

void check_replaceable(const char* option, const fs::path& file) {
    std::error_code error;
    const fs::file_status status = fs::status(file, error);
    if (fs::exists(status) && !fs::is_regular_file(status))
        refuse(option, file.string(),
               fs::is_directory(status) ? "is a folder, not a file" : "is no regular file");
}

void check_file(const char* option, const fs::path& file) {
    const fs::path parent = file.parent_path(), folder = parent.empty() ? fs::path(".") : parent;
    std::error_code error;
    if (!fs::is_directory(folder, error))
        refuse(option, file.string(), "there is no folder " + folder.string());
    check_replaceable(option, file);
    try_partial(option, file);
}

}  // namespace training
