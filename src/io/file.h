// Reads files at a position, and replaces files as a whole.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/internal.h"

namespace mezzo::io {

using namespace std::chrono_literals;

// A regular file, open for reading. Reads the file that was opened even if another takes its name.
class MEZZO_INTERNAL InputFile {
public:
    // Error messages begin with `op`.
    InputFile(const char* op, const std::string& path);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    std::uint64_t size() const { return size_; }
    // May be called by several threads. Throws Error(io) if the file ends early, because it was shortened
    // after it was opened.
    void read(std::uint64_t position, void* to, std::size_t bytes) const;

private:
    std::string where_;
    int descriptor_;
    std::uint64_t size_ = 0;
};

// Returns the first bytes, which file_kind() examines.
MEZZO_INTERNAL std::string begin_of(const InputFile& file);
// Throws Error(io) that names the kind of a file that does not begin with `magic`, if the kind is known.
MEZZO_INTERNAL void refuse_other_kind(const std::string& where, const InputFile& file, std::string_view magic,
                                      const char* wanted);

// Returns the text of a file of at most `limit` bytes, without a byte order mark in front. Throws Error(io)
// also for a Git LFS pointer and an HTML page.
MEZZO_INTERNAL std::string read_text(const char* op, const std::string& path, std::uint64_t limit);

// Writes PATH.mezzo-partial and renames it to PATH on commit(), so that PATH is at any moment the whole old
// file or the whole new one, also after a crash of the program or the system. Without commit() the partial
// file is removed.
//
// Until commit() only the owner may read the partial file. PATH keeps its permissions and its group; a new
// file, or one that replaces another user's, gets at most what the umask allows.
//
// Removes a partial file that a killed program of the same user left behind. Anything else of that name (a
// file of another user, a link, a file with a second name) is neither written nor removed: Error(io). While
// another writer of the same path is active, the constructor waits: it sends a line to the log sink after a
// second, and throws Error(io) ten seconds after a signal, or if the other writer's file has not grown for
// `patience`. A large file may take minutes to reach the disk after its last byte.
class MEZZO_INTERNAL ReplacedFile {
public:
    ReplacedFile(const char* op, const std::string& path, std::chrono::milliseconds patience = 300s);
    ~ReplacedFile();
    ReplacedFile(const ReplacedFile&) = delete;
    ReplacedFile& operator=(const ReplacedFile&) = delete;
    void write(const void* from, std::size_t bytes);
    void write(std::string_view text) { write(text.data(), text.size()); }
    // Overwrites bytes that have been written.
    void rewrite(std::uint64_t position, std::string_view text);
    void commit();

private:
    void open(std::chrono::milliseconds patience);
    bool create();
    void remove_left(std::chrono::milliseconds patience) const;
    void wait_for_writer(int descriptor, std::chrono::milliseconds patience) const;
    bool set_mode() const;
    bool has_name(int descriptor) const;
    [[noreturn]] void fail_with(const char* what, int error) const;
    void check_call(bool good, const char* what) const;

    std::string op_, path_, partial_;
    int descriptor_ = -1;
    bool own_before_ = false;        // PATH was this user's file
    unsigned mode_ = 0, group_ = 0;  // of the file after commit(); the group only if own_before_
    std::uint64_t written_ = 0;
};

}  // namespace mezzo::io
