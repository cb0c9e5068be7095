#include "io/whole_file.h"

#include <algorithm>
#include <string_view>

#include "core/system/file_kind.h"
#include "io/file.h"
#include "mezzo/error.h"

namespace mezzo::io {

std::vector<unsigned char> whole_file(const char* op, const std::string& path) {
    const InputFile file(op, path);
    check(file.size() <= std::uint64_t(1) << 30, ErrorKind::io, op, ": ", path, " has ", file.size(),
          " bytes; at most 2^30 are read");
    std::vector<unsigned char> bytes(file.size());
    file.read(0, bytes.data(), bytes.size());
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
