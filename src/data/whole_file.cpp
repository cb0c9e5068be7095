#include "data/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/regular_file.h"
#include "mezzo/error.h"

namespace mezzo::data {

namespace {

struct Closer {
    ~Closer() { ::close(descriptor); }
    int descriptor;
};

}  // namespace

std::vector<unsigned char> whole_file(const char* op, const std::string& path) {
    const RegularFile file = open_regular(op, path);
    const Closer closer{file.descriptor};
    check(file.bytes <= std::uint64_t(1) << 30, ErrorKind::io, op, ": ", path, " has ", file.bytes,
          " bytes; at most 2^30 are read");
    std::vector<unsigned char> bytes(file.bytes);
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t got = ::read(file.descriptor, &bytes[done], bytes.size() - done);
        if (got < 0 && errno == EINTR) continue;
        check(got >= 0, ErrorKind::io, op, ": cannot read ", path, ": ",
              std::generic_category().message(errno));
        if (got == 0) break;  // it has become shorter
        done += std::size_t(got);
    }
    bytes.resize(done);
    return bytes;
}

}  // namespace mezzo::data
