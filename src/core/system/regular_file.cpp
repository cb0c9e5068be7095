#include "core/system/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "mezzo/error.h"

namespace mezzo {

RegularFile open_regular(const char* op, const std::string& path) {
    RegularFile file;
    do {
        file.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (file.descriptor < 0 && errno == EINTR);
    check(file.descriptor >= 0, ErrorKind::io, op, ": cannot open ", path, ": ",
          std::generic_category().message(errno));
    struct stat status = {};
    if (fstat(file.descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
        file.bytes = std::uint64_t(status.st_size);
        return file;
    }
    ::close(file.descriptor);
    const char* what = S_ISDIR(status.st_mode)    ? "is no regular file but a directory"
                       : S_ISFIFO(status.st_mode) ? "is no regular file but a named pipe"
                                                  : "is no regular file";
    fail(ErrorKind::io, op, ": ", path, ": ", what);
}

}  // namespace mezzo
