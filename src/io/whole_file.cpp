#include "io/whole_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "core/file_kind.h"
#include "core/regular_file.h"
#include "mezzo/error.h"

namespace mezzo::io {

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
        if (got == 0) break;  // the file has become shorter
        done += std::size_t(got);
    }
    bytes.resize(done);
    return bytes;
}

std::vector<std::string> file_lines(const char* op, const std::string& path) {
    const std::vector<unsigned char> bytes = whole_file(op, path);
    const std::string_view text =
        without_byte_order_mark({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const bool carriage_return = end > at && text[end - 1] == '\r';
        lines.emplace_back(text.substr(at, end - at - carriage_return));
        at = end + 1;
    }
    return lines;
}

}  // namespace mezzo::io
