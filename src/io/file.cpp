#include "io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>

#include "core/system/file_kind.h"
#include "core/system/log_line.h"
#include "core/system/regular_file.h"
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

std::string begin_of(const InputFile& file) {
    std::string begin(std::size_t(std::min<std::uint64_t>(file.size(), file_kind_bytes)), '\0');
    file.read(0, begin.data(), begin.size());
    return begin;
}

void refuse_other_kind(const std::string& where, const InputFile& file, std::string_view magic,
                       const char* wanted) {
    const std::string begin = begin_of(file), kind = begin.starts_with(magic) ? "" : file_kind(begin);
    check(kind.empty(), ErrorKind::io, where, ": this is no ", wanted, " file: it is ", kind);
}

std::string read_text(const char* op, const std::string& path, std::uint64_t limit) {
    const InputFile file(op, path);
    check(file.size() <= limit, ErrorKind::io, op, ": ", path, ": ", file.size(), " bytes; at most ", limit,
          " are read");
    std::string text(std::size_t(file.size()), '\0');
    file.read(0, text.data(), text.size());
    refuse_failed_download(std::string(op) + ": " + path, text);
    text.erase(0, text.size() - without_byte_order_mark(text).size());
    return text;
}

ReplacedFile::ReplacedFile(const char* op, const std::string& path, std::chrono::milliseconds patience)
    : op_(op), path_(path), partial_(path + ".mezzo-partial") {
    open(patience);
}

void ReplacedFile::open(std::chrono::milliseconds patience) {
    struct stat old = {};
    if (lstat(path_.c_str(), &old) == 0 && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode))
        fail(ErrorKind::io, op_, ": cannot replace ", path_, ": it is ",
             S_ISDIR(old.st_mode) ? "a folder" : "no regular file");
    for (int attempt = 0; attempt < 10000; ++attempt) {
        if (create()) return;
        remove_left(patience);
    }
    fail_with("cannot lock", EBUSY);  // such as on a file system where a file's inode number changes
}

// Creates and locks the partial file. Returns false if the name is taken.
bool ReplacedFile::create() {
    struct stat old = {}, mine = {};
    const bool replaces = stat(path_.c_str(), &old) == 0 && S_ISREG(old.st_mode);
    own_before_ = replaces && old.st_uid == geteuid();
    // The system applies the umask to the mode of a new file, also if it replaces another user's.
    const mode_t first = own_before_ ? 0600 : replaces ? old.st_mode & 0666 : 0666;
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    descriptor_ = uninterrupted([&] { return ::open(partial_.c_str(), flags, first); });
    if (descriptor_ < 0 && errno == EEXIST) return false;
    check_call(descriptor_ >= 0, "cannot create");
    int error = 0;
    if (fstat(descriptor_, &mine) != 0) error = errno;
    mode_ = (own_before_ ? old.st_mode : mine.st_mode) & 0777;
    group_ = old.st_gid;
    // Some file systems have no permissions and fail here; then set_mode() has nothing to do either.
    static_cast<void>(fchmod(descriptor_, 0600));
    // A second writer may have locked the file first, and removed it as left over.
    const bool locked = uninterrupted([&] { return flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0;
    if (!locked && errno != EWOULDBLOCK) error = errno;
    if (error == 0 && locked && has_name(descriptor_)) return true;
    if (error != 0) unlink(partial_.c_str());
    ::close(descriptor_);
    descriptor_ = -1;
    if (error != 0) fail_with("cannot lock", error);
    return false;
}

// Removes a partial file that a killed program left behind; waits if its writer is alive.
void ReplacedFile::remove_left(std::chrono::milliseconds patience) const {
    struct stat left = {};
    if (lstat(partial_.c_str(), &left) != 0) return check_call(errno == ENOENT, "cannot create");
    const char* const obstacle = !S_ISREG(left.st_mode)     ? "is there and no regular file"
                                 : left.st_uid != geteuid() ? "is there and belongs to another user"
                                 : left.st_nlink > 1        ? "is there and has a second name (a hard link)"
                                                            : nullptr;
    if (obstacle != nullptr)
        fail(ErrorKind::io, op_, ": cannot create ", partial_, ": it ", obstacle, "; remove it; ", path_,
             " is left as it was");
    const int found = uninterrupted(
        [&] { return ::open(partial_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
    if (found < 0 && errno == ENOENT) return;
    try {
        if (found >= 0) wait_for_writer(found, patience);
        const bool same = found < 0 || has_name(found);
        if (same && unlink(partial_.c_str()) != 0 && errno != ENOENT) fail_with("cannot remove", errno);
    } catch (...) {
        if (found >= 0) ::close(found);
        throw;
    }
    if (found >= 0) ::close(found);
}

namespace {

// Removes the permissions of other users. Returns false on a file system without permissions.
bool made_private(int descriptor) {
    struct stat status = {};
    return fchmod(descriptor, 0600) == 0 && fstat(descriptor, &status) == 0 && (status.st_mode & 0077) == 0;
}

}  // namespace

// Returns when this call has the lock, or when the lock's holder is not a writer.
void ReplacedFile::wait_for_writer(int descriptor, std::chrono::milliseconds patience) const {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    Clock::time_point grown = begin;
    Clock::time_point end = Clock::time_point::max();  // after a signal
    off_t bytes = -1;
    bool always_readable = false;
    for (bool said = false; flock(descriptor, LOCK_EX | LOCK_NB) != 0;) {
        if (errno != EWOULDBLOCK && errno != EINTR) fail_with("cannot lock", errno);
        const Clock::time_point now = Clock::now();
        struct stat status = {};
        if (fstat(descriptor, &status) == 0 && status.st_size != bytes) {
            bytes = status.st_size;
            grown = now;
        }
        // A writer's file is private except for the moments before it is locked and before it is renamed. If
        // others may read it for longer, the lock's holder is no writer, unless the file system has no
        // permissions.
        const bool is_private = always_readable || (status.st_mode & 0077) == 0;
        if (!is_private && now - grown >= std::min(patience, std::chrono::milliseconds(1000))) {
            if (made_private(descriptor)) return;
            always_readable = true;
        }
        if (now - grown >= patience)
            fail(ErrorKind::io, op_, ": cannot lock ", partial_,
                 ": another process has locked it and not written for ", patience.count(),
                 " ms; end that process; ", path_, " is left as it was");
        if (!said && now - begin >= 1s) {
            said = true;
            log_line(op_ + ": waits for another process that writes " + path_);
        }
        if (now >= end)
            fail(ErrorKind::io, op_, ": a signal ended the wait for another process that writes ", partial_,
                 "; ", path_, " is left as it was");
        const timespec pause{0, 10000000};
        if (nanosleep(&pause, nullptr) != 0 && errno == EINTR)
            end = std::min(end, now + std::min(patience, std::chrono::milliseconds(10000)));
    }
}

bool ReplacedFile::has_name(int descriptor) const {
    struct stat mine = {}, named = {};
    return fstat(descriptor, &mine) == 0 && lstat(partial_.c_str(), &named) == 0 &&
           named.st_ino == mine.st_ino && named.st_dev == mine.st_dev;
}

// Gives the partial file the permissions of the file that it replaces: a private file stays private.
bool ReplacedFile::set_mode() const {
    unsigned mode = mode_;
    struct stat mine = {};
    if (fstat(descriptor_, &mine) != 0) return false;
    // If the group cannot be restored, the new file's group gets only the permissions of all users.
    if (own_before_ && mine.st_gid != group_ && fchown(descriptor_, uid_t(-1), group_) != 0)
        mode &= ~070u | (mode & 07u) << 3;
    return (mine.st_mode & 0777) == mode || fchmod(descriptor_, mode) == 0;
}

ReplacedFile::~ReplacedFile() {
    if (descriptor_ < 0) return;
    if (has_name(descriptor_)) unlink(partial_.c_str());
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
    check_call(set_mode(), "cannot set the permissions of");
    if (!has_name(descriptor_)) fail_with("another process has removed", ENOENT);
    check_call(rename(partial_.c_str(), path_.c_str()) == 0, "cannot rename");
    ::close(descriptor_);
    descriptor_ = -1;
    // The new name is on the disk once the folder is. Some file systems cannot sync folders; a crash may then
    // undo the renaming, but the file is complete in any case.
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == path_.npos ? "." : path_.substr(0, slash + 1);
    const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    fsync(directory);
    ::close(directory);
}

}  // namespace mezzo::io
