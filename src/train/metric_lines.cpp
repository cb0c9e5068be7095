// Writes metrics as lines of text: CSV and JSON.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "io/appended_file.h"
#include "io/file.h"
#include "io/json.h"
#include "mezzo/error.h"
#include "mezzo/train/metrics.h"

namespace mezzo::io {

namespace {

constexpr std::uint64_t most_csv = std::uint64_t(1) << 31;

double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void check_names(const char* op, const Metrics& metrics) {
    std::unordered_set<std::string_view> names{"step", "time"};
    for (const auto& [name, value] : metrics)
        check(!name.empty() && names.insert(name).second, ErrorKind::value, op, ": the metric \"", name,
              "\" is there twice, or its name is empty, step or time");
    for (const auto& [name, value] : metrics)
        check(first_invalid_utf8(name) == name.size(), ErrorKind::value, op, ": the name ", shown(name),
              " is not valid UTF-8");
}

// Quotes a cell as RFC 4180 defines it.
std::string csv_cell(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    return quoted + "\"";
}

// Returns the cells of the first line; `end` is where the next line begins.
std::vector<std::string> header_cells(const std::string& text, std::size_t& end) {
    std::vector<std::string> cells(1);
    bool quoted = false;
    std::size_t i = 0;
    for (; i < text.size() && (quoted || text[i] != '\n'); ++i) {
        const char c = text[i];
        if (c == '"' && quoted && i + 1 < text.size() && text[i + 1] == '"')
            cells.back() += text[++i];
        else if (c == '"')
            quoted = !quoted;
        else if (c == ',' && !quoted)
            cells.emplace_back();
        else
            cells.back() += c;
    }
    end = std::min(i + 1, text.size());
    return cells;
}

// Whether one of the two begins with the other.
bool begins_as(std::string_view text, std::string_view begin) {
    const std::size_t n = std::min(text.size(), begin.size());
    return text.substr(0, n) == begin.substr(0, n);
}

}  // namespace

struct CsvWriter::Impl {
    explicit Impl(const std::string& p) : path(p) {
        std::error_code none;
        const bool exists = std::filesystem::file_size(path, none) > 0 && !none;
        file.emplace("CsvWriter", path, false);
        if (exists) go_on();
    }

    // Reads the columns of the file, and drops an unfinished last line. A file without any finished line may
    // be anything: it is cut only if its text begins like this writer's first line.
    void go_on() {
        const std::string text = read_text("CsvWriter", path, most_csv);
        const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
        std::size_t end = 0;
        const std::vector<std::string> cells = header_cells(text.substr(0, whole), end);
        const bool own = whole == 0 ? begins_as(text, "step,time,")
                                    : cells.size() >= 2 && cells[0] == "step" && cells[1] == "time";
        check(own, ErrorKind::io, "CsvWriter: ", path,
              " does not begin with the columns step and time; it is not continued");
        if (whole != text.size()) file->shorten(whole);
        if (whole != 0) columns.assign(cells.begin() + 2, cells.end());
        begun = whole != 0;
    }

    std::string header(const std::vector<std::string>& names) const {
        std::string line = "step,time";
        for (const std::string& name : names) line += "," + csv_cell(name);
        return line + "\n";
    }

    // Rewrites the file with more columns.
    void widen(const std::vector<std::string>& wider) {
        file->flush();
        const std::string text = read_text("CsvWriter", path, most_csv);
        std::size_t begin = 0;
        static_cast<void>(header_cells(text, begin));
        std::string all = header(wider);
        const std::string more(wider.size() - columns.size(), ',');
        for (std::size_t end; begin < text.size(); begin = end + 1) {
            end = std::min(text.find('\n', begin), text.size());
            all += text.substr(begin, end - begin) + more + "\n";
        }
        ReplacedFile replaced("CsvWriter", path);
        replaced.write(all);
        replaced.commit();
        file.emplace("CsvWriter", path, false);
        columns = wider;
    }

    void add(std::int64_t step, const Metrics& metrics) {
        std::vector<std::string> wider = columns;
        for (const auto& [name, value] : metrics)
            if (std::find(wider.begin(), wider.end(), name) == wider.end()) wider.push_back(name);
        if (!begun) {
            columns = wider;
            file->append(header(columns));
            begun = true;
        } else if (wider.size() != columns.size()) {
            widen(wider);
        }
        std::string line = fmt::format("{},{:.3f}", step, now());
        for (const std::string& column : columns) {
            line += ',';
            for (const auto& [name, value] : metrics)
                if (name == column) line += fmt::format("{}", value);
        }
        file->append(line + "\n");
    }

    std::mutex mutex;
    std::string path;
    std::optional<AppendedFile> file;
    std::vector<std::string> columns;  // after step and time
    bool begun = false;                // the file has its first line
};

CsvWriter::CsvWriter(const std::string& path) : impl_(new Impl(path)) {}
CsvWriter::~CsvWriter() { delete impl_; }

void CsvWriter::log(std::int64_t step, const Metrics& metrics) {
    check_names("CsvWriter.log", metrics);
    const std::lock_guard lock(impl_->mutex);
    impl_->add(step, metrics);
}

void CsvWriter::flush() {
    const std::lock_guard lock(impl_->mutex);
    impl_->file->flush();
}

namespace {

// Returns the text behind the last newline. Reads from the end, because a log may be large.
std::string unfinished_line(const std::string& path, std::uint64_t bytes) {
    std::ifstream file(path, std::ios::binary);
    std::string rest;
    for (std::uint64_t end = bytes; end > 0;) {
        std::string part(std::min<std::uint64_t>(end, 65536), '\0');
        end -= part.size();
        file.seekg(std::streamoff(end));
        check(bool(file.read(part.data(), std::streamsize(part.size()))), ErrorKind::io,
              "JsonLinesWriter: ", path, " cannot be read");
        const std::size_t newline = part.rfind('\n');
        rest.insert(0, newline == std::string::npos ? part : part.substr(newline + 1));
        if (newline != std::string::npos) break;
    }
    return rest;
}

bool is_json(const std::string& text) {
    try {
        static_cast<void>(parse_json_tree(text, "JsonLinesWriter"));
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace

struct JsonLinesWriter::Impl {
    explicit Impl(const std::string& path) : file("JsonLinesWriter", path, false) {
        std::error_code none;
        const std::uint64_t bytes = std::filesystem::file_size(path, none);
        if (none || bytes == 0) return;
        const std::string rest = unfinished_line(path, bytes);
        if (rest.empty()) return;
        check(begins_as(rest, "{\"step\": "), ErrorKind::io, "JsonLinesWriter: the last line of ", path,
              " has no end and is none of this writer's; it is not continued");
        if (is_json(rest))
            file.append("\n");
        else
            file.shorten(bytes - rest.size());
    }
    std::mutex mutex;
    AppendedFile file;
};

JsonLinesWriter::JsonLinesWriter(const std::string& path) : impl_(new Impl(path)) {}
JsonLinesWriter::~JsonLinesWriter() { delete impl_; }

namespace {

std::string json_number(double value) {
    if (std::isnan(value)) return "\"NaN\"";
    if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return fmt::format("{}", value);
}

}  // namespace

void JsonLinesWriter::log(std::int64_t step, const Metrics& metrics) {
    check_names("JsonLinesWriter.log", metrics);
    std::string line = fmt::format("{{\"step\": {}, \"time\": {:.3f}", step, now());
    for (const auto& [name, value] : metrics) {
        line += ", ";
        append_quoted(line, name);
        line += ": " + json_number(value);
    }
    const std::lock_guard lock(impl_->mutex);
    impl_->file.append(line + "}\n");
}

void JsonLinesWriter::flush() {
    const std::lock_guard lock(impl_->mutex);
    impl_->file.flush();
}

}  // namespace mezzo::io
