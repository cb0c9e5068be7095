#include "io/appended_file.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include "mezzo/error.h"

namespace mezzo::io {

namespace {
constexpr std::size_t most_waiting = 65536;
constexpr std::chrono::seconds longest_wait{120};  // as torch.utils.tensorboard's flush_secs
}  // namespace

AppendedFile::AppendedFile(const char* op, const std::string& path, bool fresh)
    : op_(op),
      path_(path),
      descriptor_(
          ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (fresh ? O_EXCL : 0), 0666)) {
    if (descriptor_ < 0) fail_with("cannot be created");
}

AppendedFile::~AppendedFile() {
    static_cast<void>(write_out());
    ::close(descriptor_);
}

void AppendedFile::append(std::string_view text, Clock::time_point now) {
    waiting_ += text;
    if (waiting_.size() < most_waiting && now - flushed_ < longest_wait) return;
    flushed_ = now;
    flush();
}

void AppendedFile::flush() {
    if (!write_out()) fail_with("cannot be written");
}

bool AppendedFile::write_out() noexcept {
    std::size_t done = 0;
    bool good = true;
    while (good && done < waiting_.size()) {
        const ssize_t n = ::write(descriptor_, waiting_.data() + done, waiting_.size() - done);
        if (n > 0)
            done += std::size_t(n);
        else
            good = n < 0 && errno == EINTR;
    }
    waiting_.erase(0, done);
    return good;
}

void AppendedFile::shorten(std::uint64_t bytes) {
    if (::ftruncate(descriptor_, off_t(bytes)) != 0) fail_with("cannot be shortened");
}

void AppendedFile::fail_with(const char* what) const {
    const int error = errno;
    fail(ErrorKind::io, op_, ": ", path_, " ", what, ": ", std::strerror(error));
}

}  // namespace mezzo::io
