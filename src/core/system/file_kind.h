// Names of file formats, for errors of readers that were handed a file of another format; byte order marks.
#pragma once

#include <string>
#include <string_view>

#include "core/internal.h"

namespace mezzo {

// Bytes of a file's beginning that file_kind() looks at.
inline constexpr std::size_t file_kind_bytes = 512;

// Names the format of a file that begins with these bytes, and says what to do about it: "a Git LFS pointer,
// not the file itself; fetch it with git lfs pull". Returns "" for bytes of no known format.
MEZZO_INTERNAL std::string file_kind(std::string_view begin);

// The same for the two texts that failed downloads leave instead of any file, a Git LFS pointer and an HTML
// page; "" for all else. For readers of text.
std::string failed_download(std::string_view begin);

// A text without the byte order mark that some editors write in front of UTF-8. Every reader of text files
// skips it.
inline std::string_view without_byte_order_mark(std::string_view text) {
    return text.starts_with("\xef\xbb\xbf") ? text.substr(3) : text;
}

// Throws Error(io), whose text begins with `where`, if failed_download() is not "".
MEZZO_INTERNAL void refuse_failed_download(const std::string& where, std::string_view begin);

}  // namespace mezzo
