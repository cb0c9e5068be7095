#include "resnet/log.h"

#include <sys/resource.h>

#include <filesystem>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "program.h"

namespace resnet {

namespace {

constexpr const char* header =
    "kind,epoch,step,seconds,loss,train_accuracy,test_accuracy,lr,scale,skipped,images_per_s,peak_bytes";

// Returns the step of a row; -1 for an incomplete row.
std::int64_t step_of(const std::string& line) {
    std::vector<std::string_view> cells;
    for (std::size_t at = 0; at <= line.size();) {
        const std::size_t end = std::min(line.find(',', at), line.size());
        cells.push_back(std::string_view(line).substr(at, end - at));
        at = end + 1;
    }
    std::int64_t step = -1;
    return cells.size() == 12 && !cells[11].empty() && program::parse_number(cells[2], step) ? step : -1;
}

std::vector<std::string> rows_until(const std::string& path, std::int64_t keep, bool keep_epoch) {
    std::vector<std::string> rows;
    if (keep <= 0 || !std::filesystem::exists(path)) return rows;
    for (const std::string& line : program::lines_of(program::read_file(path)))
        if (const std::int64_t step = step_of(line); step > 0 && step <= keep)
            if (step < keep || keep_epoch || !line.starts_with("epoch,")) rows.push_back(line);
    return rows;
}

template <class T> std::string optional_cell(const std::optional<T>& value) {
    return value ? fmt::format("{:.6g}", *value) : std::string();
}

}  // namespace

// If the program is killed here, the old or the new log exists.
Log::Log(const std::string& path, std::int64_t keep, bool keep_epoch) : path_(path) {
    if (path.empty()) return;
    const std::vector<std::string> rows = rows_until(path, keep, keep_epoch);
    const std::string partial = path + ".mezzo-partial";
    file_.open(partial);
    write(header);
    for (const std::string& row : rows) write(row);
    file_.close();
    std::error_code error;
    std::filesystem::rename(partial, path, error);
    if (error) throw std::runtime_error("--log: " + path + ": cannot be replaced: " + error.message());
    file_.open(path, std::ios::app);
}

void Log::add(const LogRow& r) {
    if (path_.empty()) return;
    write(fmt::format("{},{},{},{:.3f},{:.6g},{:.6g},{},{:.6g},{},{},{:.1f},{}", r.kind, r.epoch, r.step,
                      r.seconds, r.loss, r.train_accuracy, optional_cell(r.test_accuracy), r.lr,
                      optional_cell(r.scale), r.scale ? std::to_string(r.skipped) : std::string(),
                      r.images_per_second, r.peak_bytes));
}

void Log::write(const std::string& line) {
    if (!(file_ << line << '\n').flush()) throw std::runtime_error("--log: " + path_ + ": cannot be written");
}

std::uint64_t peak_bytes(bool cpu, std::uint64_t allocated) {
    if (!cpu) return allocated;
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return std::uint64_t(usage.ru_maxrss) * 1024;
}

}  // namespace resnet
