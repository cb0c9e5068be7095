// Manages the checkpoints of one run in a folder: their names, the newest complete one, and which are
// removed.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <filesystem>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "core/enumerators.h"
#include "core/system/log_line.h"
#include "mezzo/distributed/state.h"
#include "mezzo/train/checkpoint.h"

namespace fs = std::filesystem;

namespace mezzo::training {

namespace {

constexpr std::string_view prefix = "step-", suffix = ".ckpt", partial = ".mezzo-partial";

// Returns the step in a file's name; negative for other names.
std::int64_t step_of(std::string_view name) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) return -1;
    name.remove_prefix(prefix.size());
    name.remove_suffix(std::min(suffix.size(), name.size()));
    std::int64_t step = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

double metric_of(const std::string& path, const std::string& name) {
    for (const auto& [key, value] : read_checkpoint_info(path).metrics)
        if (key == name) return value;
    return std::nan("");
}

void try_remove(const fs::path& path) {
    std::error_code error;
    if (!fs::remove(path, error) && error)
        log_line("checkpoints: " + path.string() + " cannot be removed: " + error.message());
}

// Removes a partial file of a killed program, if no process has it locked. Its name belongs to another step
// than the next save's, so nothing would overwrite it.
void remove_abandoned(const fs::path& path) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) return;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) try_remove(path);
    ::close(descriptor);
}

// Runs work() on rank 0. If it throws, throws on all ranks.
template <class Work>
void by_leader(const distributed::Group* group, const std::string& folder, const Work& work) {
    if (group == nullptr || group->size() == 1) return work();
    distributed::together(*group,
                          "CheckpointFolder: " + folder + ": rank 0 could not save; its error says why", [&] {
                              if (group->leader()) work();
                          });
}

// Whether a checkpoint can be read, with all its tensors.
bool is_whole(const std::string& path) {
    try {
        static_cast<void>(io::load_checkpoint(path));
        return true;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::io) throw;
        return false;
    }
}

// Loads the first checkpoint that can be read. Returns nothing without files; throws Error(io), with the
// error of the first file, if none can be read.
std::optional<CheckpointInfo> load_first(const Checkpoint& checkpoint,
                                         const std::vector<CheckpointFile>& files) {
    std::string first_error;
    for (const CheckpointFile& file : files) {
        try {
            return checkpoint.load(file.path);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::io) throw;
            log_line(std::string("checkpoints: skipped: ") + error.what());
            if (first_error.empty()) first_error = error.what();
        }
    }
    check(files.empty(), ErrorKind::io, "CheckpointFolder: none of ", files.size(),
          " checkpoints can be read: ", first_error);
    return std::nullopt;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string folder, const CheckpointFolderOptions& options)
    : folder_(std::move(folder)), options_(options) {
    check_enumerator("CheckpointFolder", "better", options.better, Better::lower);
    check(!folder_.empty(), ErrorKind::value, "CheckpointFolder: the folder has no name");
    check(options.keep_last >= 1, ErrorKind::value, "CheckpointFolder: keep_last is ", options.keep_last,
          "; the newest always stays");
    check(options.keep_best >= 0, ErrorKind::value, "CheckpointFolder: keep_best is ", options.keep_best);
    check(options.keep_best == 0 || !options.metric.empty(), ErrorKind::value,
          "CheckpointFolder: keep_best is ", options.keep_best, ", and no metric says which are the best");
}

std::string CheckpointFolder::path_of(std::int64_t step) const {
    return fmt::format("{}/{}{:010}{}", folder_, prefix, step, suffix);
}

std::vector<CheckpointFile> CheckpointFolder::files() const {
    std::vector<CheckpointFile> result;
    std::error_code error;
    fs::directory_iterator entry(folder_, error);
    if (error == std::errc::no_such_file_or_directory) return result;
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (const std::int64_t step = step_of(name); step >= 0)
            result.push_back({step, folder_ + "/" + name});
    }
    check(!error, ErrorKind::io, "CheckpointFolder: ", folder_, " cannot be read: ", error.message());
    std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
    return result;
}

std::vector<CheckpointFile> CheckpointFolder::best() const {
    std::vector<std::pair<double, CheckpointFile>> ranked;
    for (const CheckpointFile& file : files()) {
        try {
            const double value = metric_of(file.path, options_.metric);
            if (!std::isnan(value))
                ranked.emplace_back(options_.better == Better::higher ? -value : value, file);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::io) throw;
        }
    }
    std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second.step > b.second.step;
    });
    std::vector<CheckpointFile> result;
    for (const auto& [value, file] : ranked) result.push_back(file);
    return result;
}

// Creates the folder. Complete files of later steps are not the past of this training.
void CheckpointFolder::prepare(std::int64_t step) const {
    std::error_code error;
    fs::create_directories(folder_, error);
    check(!error, ErrorKind::io, "CheckpointFolder: ", folder_, " cannot be made: ", error.message());
    for (const CheckpointFile& file : files()) {
        if (file.step <= step) continue;
        check(!is_whole(file.path), ErrorKind::value, "CheckpointFolder: ", folder_, " has step ", file.step,
              ", and this training is at step ", step,
              "; resume from it, remove it, or use another folder for another run");
        fs::rename(file.path, file.path + ".damaged", error);
        log_line("checkpoints: " + file.path + " is damaged" +
                 (error ? " and cannot be renamed: " + error.message() : " and has been renamed"));
    }
}

void CheckpointFolder::rotate() const {
    try {
        const std::vector<CheckpointFile> all = files();
        std::set<std::int64_t> kept;
        for (std::size_t i = 0; i < all.size() && i < std::size_t(options_.keep_last); ++i)
            kept.insert(all[all.size() - 1 - i].step);
        if (options_.keep_best > 0) {
            const std::vector<CheckpointFile> ranked = best();
            for (std::size_t i = 0; i < ranked.size() && i < std::size_t(options_.keep_best); ++i)
                kept.insert(ranked[i].step);
        }
        for (const CheckpointFile& file : all)
            if (!kept.contains(file.step)) try_remove(file.path);
        for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
            const std::string name = entry.path().filename().string();
            if (name.starts_with(prefix) && name.ends_with(partial)) remove_abandoned(entry.path());
        }
    } catch (const std::exception& error) {  // the checkpoint is saved; this is no reason to stop
        log_line(std::string("checkpoints: old ones cannot be removed: ") + error.what());
    }
}

void CheckpointFolder::save(const Checkpoint& checkpoint, const CheckpointInfo& info) const {
    const distributed::Group* const group = checkpoint.parts().group;
    by_leader(group, folder_, [&] { prepare(info.step); });
    checkpoint.save(path_of(info.step), info);
    if (group == nullptr || group->leader()) rotate();
}

std::optional<CheckpointInfo> CheckpointFolder::load_newest(const Checkpoint& checkpoint) const {
    std::vector<CheckpointFile> newest_first = files();
    std::reverse(newest_first.begin(), newest_first.end());
    return load_first(checkpoint, newest_first);
}

std::optional<CheckpointInfo> CheckpointFolder::load_best(const Checkpoint& checkpoint) const {
    return load_first(checkpoint, best());
}

}  // namespace mezzo::training
