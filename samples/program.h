// Helpers for all programs of this repository: common options and ranges, reading of text files, and the end
// of main(). docs/reference/programs.md says what users may rely on.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "mezzo/autocast.h"

namespace program {

// Parses the whole text as a decimal number; returns false for anything else, and for numbers outside of T's
// range.
template <class T> bool parse_number(std::string_view text, T& value) {
    if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

template <class T> std::string shown(T value) {
    if constexpr (std::is_floating_point_v<T>) return fmt::format("{:g}", value);
    return fmt::format("{}", value);
}

// For Option::transform(): a number from low to high, both included. Errors contain the value and the range.
template <class T> CLI::Validator in_range(T low, T high) {
    const std::string range = shown(low) + " to " + shown(high);
    const char* const kind = std::is_floating_point_v<T> ? "a number" : "a whole number";
    return CLI::Validator(
        [=](std::string& text) -> std::string {
            T value{};
            if (!parse_number(text, value) || !(value >= low && value <= high))
                return fmt::format("\"{}\" is not {} from {}", text, kind, range);
            if constexpr (!std::is_floating_point_v<T>) text = std::to_string(value);  // 010 is ten
            return {};
        },
        "from " + range);
}

inline constexpr std::int64_t many = std::int64_t{1} << 32;
inline CLI::Validator positive() { return in_range<std::int64_t>(1, many); }
inline CLI::Validator not_negative() { return in_range<std::int64_t>(0, many); }
inline CLI::Validator any_seed() {
    return in_range<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max());
}
inline CLI::Validator thread_count() { return in_range(1, 1024); }
inline CLI::Validator learning_rate() { return in_range(0.0, 1e3); }

// Options with the same meaning in all programs.
inline CLI::Option* add_device(CLI::App& app, std::string& device) {
    return app.add_option("--device", device, "cpu, cuda or cuda:N; default: cuda if there is one");
}
inline CLI::Option* add_precision(CLI::App& app, std::string& precision) {
    return app
        .add_option(
            "--precision", precision,
            "fp32; bf16: autocast; fp16: autocast and gradient scaler; fp8: bf16 with float8 products")
        ->check(CLI::IsMember({"fp32", "bf16", "fp16", "fp8"}));
}
// The scope of such a precision. Samples are small, so layers of any size are in float8.
inline mezzo::amp::AutocastOptions autocast(const std::string& precision) {
    mezzo::amp::AutocastOptions result{.dtype = precision == "fp16" ? mezzo::float16 : mezzo::bfloat16,
                                       .enabled = precision != "fp32"};
    if (precision == "fp8") result.fp8 = mezzo::amp::Fp8{.least_size = 16};
    return result;
}
// `of` describes its use, such as "of weights and order".
inline CLI::Option* add_seed(CLI::App& app, std::uint64_t& seed, const char* of) {
    return app.add_option("--seed", seed, of)->transform(any_seed());
}
inline CLI::Option* add_threads(CLI::App& app, int& threads) {
    return app.add_option("--threads", threads, "CPU threads")->transform(thread_count());
}

// Log sink that writes to stderr.
inline void log_to_stderr(std::string_view line) { fmt::print(stderr, "{}\n", line); }

// Writes to standard error. Failures to write are ignored.
inline void tell(const std::string& text) { std::fputs(text.c_str(), stderr); }

// Reads all of an open file. Throws if reading fails, which the end of the file is not. `name` begins the
// error.
inline std::string read_all(std::FILE* file, const std::string& name) {
    std::string text;
    char buffer[1 << 16];
    while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, got);
    if (std::ferror(file)) throw std::runtime_error(name + ": cannot be read: " + std::strerror(errno));
    return text;
}
inline std::string read_file(const std::string& path) {
    std::error_code unknown;
    if (std::filesystem::is_fifo(path, unknown))  // opening it would wait for a writer
        throw std::runtime_error(path + ": is a named pipe, no regular file");
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) throw std::runtime_error(path + ": cannot be read: " + std::strerror(errno));
    return read_all(file.get(), path);
}

// Returns lines without their ends, "\n" or "\r\n".
inline std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const bool carriage_return = end > at && text[end - 1] == '\r';
        lines.push_back(text.substr(at, end - at - carriage_return));
        at = end + 1;
    }
    return lines;
}

// Throws unless files can be created in a folder; `option` begins the error.
inline void require_writable(const char* option, const std::filesystem::path& folder) {
    if (access(folder.c_str(), W_OK | X_OK) == 0) return;
    const int reason = errno;
    throw std::runtime_error(
        fmt::format("{}: {}: cannot be written into: {}", option, folder.string(), std::strerror(reason)));
}

// Throws unless the file can be created or replaced.
inline void require_file(const char* option, const std::filesystem::path& file) {
    const std::filesystem::path parent = file.parent_path(), folder = parent.empty() ? "." : parent;
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error))
        throw std::runtime_error(
            fmt::format("{}: {}: there is no folder {}", option, file.string(), folder.string()));
    const auto status = std::filesystem::status(file, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        throw std::runtime_error(fmt::format("{}: {}: is no regular file", option, file.string()));
    require_writable(option, folder);
}
// Creates the folder if it does not exist. Throws unless files can be created in it.
inline void require_folder(const char* option, const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || !std::filesystem::is_directory(folder))
        throw std::runtime_error(fmt::format("{}: {}: cannot be made: {}", option, folder.string(),
                                             error ? error.message() : "a file has this name"));
    require_writable(option, folder);
}

// Returns a digest of the text (FNV-1a of 64 bits), or of several texts if the digest so far is passed on.
inline std::uint64_t digest_of(std::string_view text, std::uint64_t digest = 0xcbf29ce484222325u) {
    for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return digest;
}

// Parses the command line and the file of --config. Returns -1 to continue, or the exit code of a program
// that has printed help or an error.
inline int parse(CLI::App& app, int argc, char** argv) {
    app.set_config("--config", "", "file of further options, a line for each: name = value")
        ->type_name("FILE");
    app.allow_config_extras(CLI::config_extras_mode::error);
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& help) {
        return app.exit(help);
    } catch (const CLI::ParseError& error) {
        app.exit(error);
        return 2;
    }
    return -1;
}

// Opens /dev/null for closed standard streams: a file that the program opens must not take such a stream's
// number, as output would be written to it. The descriptor can be neither read nor written, like a closed
// stream.
inline void occupy_closed_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(stream, F_GETFD) < 0)
            static_cast<void>(open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
}

// Runs body(), which returns the exit code. Errors are written to standard error after the program's name.
// Output that cannot be written is an error: a full disk must not look like success.
template <class Body> int run(const char* name, const Body& body) {
    int code = 1;
    occupy_closed_streams();
    try {
        code = body();
    } catch (const std::filesystem::filesystem_error& error) {
        tell(fmt::format("{}: {}: {}\n", name, error.path1().string(), error.code().message()));
    } catch (const std::exception& error) {
        tell(fmt::format("{}: {}\n", name, error.what()));
    }
    errno = 0;
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
    if (errno ==
        0) {  // an earlier write failed, and its reason is gone: another one is likely to meet the same
        std::clearerr(stdout);
        std::fputc('\n', stdout);
        std::fflush(stdout);
    }
    const std::string reason = errno == 0 ? "" : std::string(": ") + std::strerror(errno);
    tell(fmt::format("{}: standard output cannot be written{}\n", name, reason));
    return code == 0 ? 1 : code;
}

}  // namespace program
