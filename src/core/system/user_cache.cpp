#include "core/system/user_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

namespace mezzo {
namespace {

constexpr off_t largest = 1 << 20;

// A file descriptor that closes itself.
class Descriptor {
public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() {
        if (number_ >= 0) close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return number_; }

private:
    int number_;
};

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

bool write_all(int file, const std::string& text) {
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t count = write(file, text.data() + done, text.size() - done);
        if (count <= 0) return false;
        done += static_cast<std::size_t>(count);
    }
    return true;
}

}  // namespace

std::string user_cache_folder() {
    if (const char* folder = std::getenv("MEZZO_CACHE")) return std::string(folder) == "off" ? "" : folder;
    if (const std::string base = variable("XDG_CACHE_HOME"); !base.empty() && base[0] == '/')
        return base + "/mezzo";
    const std::string home = variable("HOME");
    return home.empty() ? "" : home + "/.cache/mezzo";
}

std::string read_user_cache(const char* name) try {
    const std::string folder = user_cache_folder();
    if (folder.empty()) return "";
    // Not blocking: a pipe without a writer would wait for ever.
    const Descriptor file(open((folder + "/" + name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status;
    if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size > largest)
        return "";
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t count = read(file.get(), text.data() + done, text.size() - done);
        if (count <= 0) return "";
        done += static_cast<std::size_t>(count);
    }
    return text;
} catch (const std::exception&) {  // no memory
    return {};
}

void write_user_cache(const char* name, const std::string& text) try {
    const std::string folder = user_cache_folder();
    if (folder.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    std::string unfinished = folder + "/" + name + ".XXXXXX";
    {
        const Descriptor file(mkostemp(unfinished.data(), O_CLOEXEC));
        if (file.get() < 0) return;
        if (!write_all(file.get(), text)) {
            unlink(unfinished.c_str());
            return;
        }
    }
    if (std::rename(unfinished.c_str(), (folder + "/" + name).c_str()) != 0) unlink(unfinished.c_str());
} catch (const std::exception&) {  // no memory: the next process measures again
}

}  // namespace mezzo
