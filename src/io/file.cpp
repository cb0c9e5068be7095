#include "io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/regular_file.h"
#include "mezzo/error.h"

namespace mezzo::io {

namespace {

constexpr std::size_t chunk = std::size_t(1) << 30;  // one call transfers less than 2 GiB

std::string reason(int error) { return std::generic_category().message(error); }

// Repeats a system call that a signal interrupted.
template <class Call> auto uninterrupted(Call call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

}  // namespace

InputFile::InputFile(const char* op, const std::string& path) : where_(std::string(op) + ": " + path) {
    const RegularFile file = open_regular(op, path);
    descriptor_ = file.descriptor;
    size_ = file.bytes;
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::uint64_t position, void* to, std::size_t bytes) const {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t got = uninterrupted([&] {
            return pread(descriptor_, static_cast<char*>(to) + done, std::min(bytes - done, chunk),
                         off_t(position + done));
        });
        check(got >= 0, ErrorKind::io, where_, ": cannot read ", bytes, " bytes at ", position, ": ",
              reason(errno));
        check(got > 0, ErrorKind::io, where_, ": ends at byte ", position + done, ", had ", size_,
              " when it was opened; something shortened it");
        done += std::size_t(got);
    }
}

std::string read_text(const char* op, const std::string& path, std::uint64_t limit) {
    const InputFile file(op, path);
    check(file.size() <= limit, ErrorKind::io, op, ": ", path, ": ", file.size(), " bytes; at most ", limit,
          " are read");
    std::string text(std::size_t(file.size()), '\0');
    file.read(0, text.data(), text.size());
    return text;
}

ReplacedFile::ReplacedFile(const char* op, const std::string& path)
    : op_(op), path_(path), partial_(path + ".mezzo-partial") {
    open();
}

void ReplacedFile::open() {
    struct stat old = {};
    if (lstat(path_.c_str(), &old) == 0 && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode))
        fail(ErrorKind::io, op_, ": cannot replace ", path_, ": it is ",
             S_ISDIR(old.st_mode) ? "a folder" : "no regular file");
    for (int attempt = 0; attempt < 10000; ++attempt) {
        constexpr int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
        descriptor_ = uninterrupted([&] { return ::open(partial_.c_str(), flags, 0666); });
        check_call(descriptor_ >= 0, "cannot create");
        const bool locked = uninterrupted([&] { return flock(descriptor_, LOCK_EX); }) == 0;
        struct stat mine = {}, named = {};
        const bool regular = locked && fstat(descriptor_, &mine) == 0 && S_ISREG(mine.st_mode);
        // While this call waited for the lock, its last owner may have renamed or removed the file.
        const bool same = regular && lstat(partial_.c_str(), &named) == 0 && named.st_ino == mine.st_ino &&
                          named.st_dev == mine.st_dev;
        if (same && ftruncate(descriptor_, 0) == 0 && keep_mode()) return;
        const int error = errno;
        if (same) unlink(partial_.c_str());
        ::close(descriptor_);
        descriptor_ = -1;
        if (!locked) fail_with("cannot lock", error);
        if (!regular || same) fail_with("cannot write", error);
    }
    fail_with("cannot lock", EBUSY);  // such as on a file system where a file's inode number changes
}

// Gives the partial file the permissions of the file that it will replace: what was private stays private.
bool ReplacedFile::keep_mode() const {
    struct stat old = {};
    if (stat(path_.c_str(), &old) != 0 || !S_ISREG(old.st_mode)) return true;
    return fchmod(descriptor_, old.st_mode & 0777) == 0;
}

ReplacedFile::~ReplacedFile() {
    if (descriptor_ < 0) return;
    unlink(partial_.c_str());
    ::close(descriptor_);
}

void ReplacedFile::fail_with(const char* what, int error) const {
    fail(ErrorKind::io, op_, ": ", what, " ", partial_, " after ", written_, " bytes: ", reason(error), "; ",
         path_, " is left as it was");
}

void ReplacedFile::check_call(bool good, const char* what) const {
    if (!good) fail_with(what, errno);
}

void ReplacedFile::write(const void* from, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t got = uninterrupted([&] {
            return ::write(descriptor_, static_cast<const char*>(from) + done, std::min(bytes - done, chunk));
        });
        check_call(got > 0, "cannot write");
        done += std::size_t(got);
        written_ += std::size_t(got);
    }
}

void ReplacedFile::rewrite(std::uint64_t position, std::string_view text) {
    for (std::size_t done = 0; done < text.size();) {
        const ssize_t got = uninterrupted([&] {
            return pwrite(descriptor_, text.data() + done, std::min(text.size() - done, chunk),
                          off_t(position + done));
        });
        check_call(got > 0, "cannot write");
        done += std::size_t(got);
    }
}

void ReplacedFile::commit() {
    check_call(uninterrupted([&] { return fsync(descriptor_); }) == 0, "cannot write");
    check_call(rename(partial_.c_str(), path_.c_str()) == 0, "cannot rename");
    ::close(descriptor_);
    descriptor_ = -1;
    // The new name is on the disk when the folder is. Some file systems cannot sync folders; a crash may then
    // undo the renaming, but the file is whole in any case.
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == path_.npos ? "." : path_.substr(0, slash + 1);
    const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    fsync(directory);
    ::close(directory);
}

}  // namespace mezzo::io
