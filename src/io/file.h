// Files: reading at a position, and replacing a file as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo::io {

// A regular file, open for reading. Reads the file that was opened even if another takes its name.
class InputFile {
public:
    // Error texts begin with `op`.
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

// The text of a file of at most `limit` bytes.
std::string read_text(const char* op, const std::string& path, std::uint64_t limit);

// Writes PATH.mezzo-partial and renames it to PATH on commit(), so that PATH is at any moment the whole old
// file or the whole new one, also after a crash of the program or the system. A partial file that a killed
// program left behind is overwritten by the next writer; a second writer of the same path waits. Without
// commit() the partial file is removed.
class ReplacedFile {
public:
    ReplacedFile(const char* op, const std::string& path);
    ~ReplacedFile();
    ReplacedFile(const ReplacedFile&) = delete;
    ReplacedFile& operator=(const ReplacedFile&) = delete;
    void write(const void* from, std::size_t bytes);
    void write(std::string_view text) { write(text.data(), text.size()); }
    // Overwrites bytes that have been written.
    void rewrite(std::uint64_t position, std::string_view text);
    void commit();

private:
    void open();
    bool keep_mode() const;
    [[noreturn]] void fail_with(const char* what, int error) const;
    void check_call(bool good, const char* what) const;

    std::string op_, path_, partial_;
    int descriptor_ = -1;
    std::uint64_t written_ = 0;
};

}  // namespace mezzo::io
