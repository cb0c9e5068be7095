// A file that grows while a program runs, such as a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/internal.h"

namespace mezzo::io {

class MEZZO_INTERNAL AppendedFile {
public:
    // Creates the file, or appends to it. With `fresh` it must not exist yet. Error messages begin with `op`.
    AppendedFile(const char* op, const std::string& path, bool fresh);
    // Writes the waiting text if it can; throws nothing.
    ~AppendedFile();
    AppendedFile(const AppendedFile&) = delete;
    AppendedFile& operator=(const AppendedFile&) = delete;

    const std::string& path() const { return path_; }
    using Clock = std::chrono::steady_clock;
    // Buffers the text. Writes the buffer if it has 64 KiB, or if this function has not written for 120
    // seconds, or in flush(). No timer runs: only append() looks at the clock.
    void append(std::string_view text, Clock::time_point now = Clock::now());
    // Writes all buffered text. Throws Error(io); text that could not be written stays in the buffer for the
    // next try.
    void flush();
    // Truncates the file to so many bytes. The buffer must be empty.
    void shorten(std::uint64_t bytes);

private:
    bool write_out() noexcept;  // false: errno has the reason
    [[noreturn]] void fail_with(const char* what) const;
    std::string op_, path_, waiting_;
    Clock::time_point flushed_ = Clock::now();
    int descriptor_;
};

}  // namespace mezzo::io
