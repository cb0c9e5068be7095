#include "kernels/choice_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "core/fnv1a.h"
#include "core/system/user_cache.h"

namespace mezzo {
namespace {

std::string checksum_line(std::string_view text) { return fmt::format("end {:016x}\n", fnv1a(text)); }

std::string one_line(std::string text) {
    for (char& c : text)
        if (static_cast<unsigned char>(c) < ' ') c = ' ';
    return text;
}

// Opens a lock or mark file in the cache folder; returns -1 if that is impossible.
int open_beside(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

// Locks a file among processes for the length of a scope. Goes on without the lock after a second: then two
// processes may write at once, and one result may be lost, which costs another attempt.
class FileLock {
public:
    explicit FileLock(const std::string& path) : file_(path.empty() ? -1 : open_beside(path)) {
        for (int i = 0; file_ >= 0 && i < 100 && flock(file_, LOCK_EX | LOCK_NB) != 0; ++i) {
            if (errno != EWOULDBLOCK && errno != EINTR) return;  // a file system without locks
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
    ~FileLock() {
        if (file_ >= 0) close(file_);
    }
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

private:
    const int file_;
};

std::string in_cache(const std::string& name) {
    const std::string folder = user_cache_folder();
    return folder.empty() ? "" : folder + "/" + name;
}

constexpr std::string_view good_text = "passed", bad_text = "not used; ", open_text = "not checked yet";

}  // namespace

std::string text_of(const CheckResult& result) {
    if (result.state == CheckResult::good) return std::string(good_text);
    if (result.state == CheckResult::bad) return std::string(bad_text) + result.reason;
    return std::string(open_text) + (result.reason.empty() ? "" : "; " + result.reason);
}

CheckResult check_result_of(std::string_view text) {
    if (text == good_text) return {CheckResult::good, {}};
    if (!text.starts_with(bad_text)) return {};
    return {CheckResult::bad, std::string(text.substr(bad_text.size()))};
}

ChoiceFile::ChoiceFile(std::string family, std::string identity)
    : family_(std::move(family)), identity_(one_line(std::move(identity))) {}

std::string ChoiceFile::file_name() const { return fmt::format("{}-{:016x}.txt", family_, fnv1a(identity_)); }

std::string ChoiceFile::mark_path(const std::string& key) const {
    return in_cache(fmt::format("{}-{:016x}.begun", family_, fnv1a(identity_ + "\n" + key)));
}

Choices ChoiceFile::load() const {
    const std::string text = read_user_cache(file_name().c_str());
    const std::size_t end = text.rfind("end ");
    const std::string begin = identity_ + "\n";
    if (end == std::string::npos || !text.starts_with(begin)) return {};
    const std::string_view body = std::string_view(text).substr(0, end);
    if (text.substr(end) != checksum_line(body)) return {};
    Choices choices;
    for (std::size_t at = begin.size(), line_end; (line_end = body.find('\n', at)) != std::string_view::npos;
         at = line_end + 1) {
        const std::string_view line = body.substr(at, line_end - at);
        if (const std::size_t colon = line.find(": "); colon != std::string_view::npos)
            choices[std::string(line.substr(0, colon))] = line.substr(colon + 2);
    }
    return choices;
}

void ChoiceFile::save(const std::string& key, const std::string& choice) const {
    const FileLock lock(in_cache(family_ + ".lock"));
    Choices choices = load();
    choices[key] = one_line(choice);
    std::string text = identity_ + "\n";
    for (const auto& [one, chosen] : choices) text += fmt::format("{}: {}\n", one, chosen);
    write_user_cache(file_name().c_str(), text + checksum_line(text));
}

CheckResult ChoiceFile::check(const std::string& key, bool again,
                              const std::function<CheckResult()>& run) const {
    const auto stored = [&] { return again ? CheckResult() : check_result_of(load()[key]); };
    CheckResult result = stored();
    if (result.state != CheckResult::open) return result;
    const Mark mark(*this, key);
    result = stored();  // another process may have ended the check, or read the mark, in between
    if (result.state != CheckResult::open) return result;
    if (mark.found() && !again)
        result = {CheckResult::bad,
                  "an earlier process ended in this check; mezzo-info --self-check (CUDA) or "
                  "--measure (CPU) tries again"};
    else
        result = run();
    if (result.state != CheckResult::open) save(key, text_of(result));
    return result;
}

// The mark is a file with a line. An empty file was made by a process that has not locked it yet, or that
// died before its attempt began.
ChoiceFile::Mark::Mark(const ChoiceFile& file, const std::string& key) : path_(file.mark_path(key)) {
    if (path_.empty()) return;
    file_ = open_beside(path_);
    if (file_ < 0) return;
    struct stat status;
    const bool locked = flock(file_, LOCK_EX | LOCK_NB) == 0 && fstat(file_, &status) == 0;
    if (!locked || status.st_nlink == 0) {  // another process makes the same attempt, or has just ended it
        close(std::exchange(file_, -1));
        return;
    }
    found_ = status.st_size != 0;
    const std::string text = file.identity_ + "\n" + key + "\n";
    if (found_ || write(file_, text.data(), text.size()) > 0) return;
    unlink(path_.c_str());  // no room for a mark
    close(std::exchange(file_, -1));
}

ChoiceFile::Mark::~Mark() {
    if (file_ < 0) return;
    // On NFS a file that another process has opened outlives this: empty, it marks nothing.
    static_cast<void>(ftruncate(file_, 0) == 0);
    unlink(path_.c_str());
    close(file_);
}

}  // namespace mezzo
