// A file that grows while a program runs, such as a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo::io {

class AppendedFile {
public:
    // Creates the file, or goes on at its end. fresh: it must not exist yet. Error texts begin with `op`.
    AppendedFile(const char* op, const std::string& path, bool fresh);
    // Writes what is left if it can.
    ~AppendedFile();
    AppendedFile(const AppendedFile&) = delete;
    AppendedFile& operator=(const AppendedFile&) = delete;

    const std::string& path() const { return path_; }
    using Clock = std::chrono::steady_clock;
    // Keeps the text until there are 64 KiB, until 120 seconds have passed since the last flush, which is looked
    // at here and not by a clock of its own, or until flush().
    void append(std::string_view text, Clock::time_point now = Clock::now());
    // Hands everything to the system. Throws Error(io); what could not be written is kept for the next try.
    void flush();
    // Cuts the file to so many bytes; nothing may be waiting.
    void shorten(std::uint64_t bytes);

private:
    bool write_out() noexcept;  // false: errno says why
    [[noreturn]] void fail_with(const char* what) const;
    std::string op_, path_, waiting_;
    Clock::time_point flushed_ = Clock::now();
    int descriptor_;
};

}  // namespace mezzo::io
