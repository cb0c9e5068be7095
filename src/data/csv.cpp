// Reads CSV as RFC 4180 defines it.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/system/file_kind.h"
#include "data/table_cells.h"
#include "io/json.h"
#include "io/whole_file.h"
#include "mezzo/error.h"

namespace mezzo::data {

namespace {

class CsvReader {
public:
    CsvReader(const std::string& path, std::string_view text, char delimiter)
        : path_(path), text_(without_byte_order_mark(text)), delimiter_(delimiter) {
        for (const char c : {'\n', '\r', '"', '\0', delimiter})
            special_[static_cast<unsigned char>(c)] = true;
        delimits_numbers_ = std::strchr("+-.eE0123456789", delimiter) == nullptr || delimiter == '\0';
    }
    void restart() {
        at_ = 0;
        line_ = 1;
    }
    // Calls take(i) for cell i of the next line that is not empty; take() reads the cell by number() or
    // cell(). Returns the number of cells, 0 at the end.
    template <class Take> std::size_t next(const Take& take) {
        while (at_ < text_.size() && ends_line()) pass_line_end();
        if (at_ >= text_.size()) return 0;
        first_line_ = line_;
        for (std::size_t i = 0;; ++at_) {  // past the delimiter
            take(i++);
            if (at_ >= text_.size()) return i;
            if (text_[at_] == delimiter_) continue;
            pass_line_end();
            return i;
        }
    }
    // Reads the cell as a plain number. Returns false, without consuming it, if cell() must read it.
    bool number(Number& number) {
        const char *const begin = text_.data(), *const end = begin + text_.size();
        const char* const after = delimits_numbers_ ? scan_number(begin + at_, end, number) : nullptr;
        if (after == nullptr) return false;
        if (after < end && *after != delimiter_ && *after != '\n' &&
            !(*after == '\r' && after + 1 < end && after[1] == '\n'))
            return false;
        at_ = std::size_t(after - begin);
        return true;
    }
    // Returns the text of the cell, valid until the next cell is read.
    std::string_view cell() { return at_ < text_.size() && text_[at_] == '"' ? quoted() : plain(); }
    // Estimates how many lines the file has from the length of the first `lines`, which have been read.
    std::size_t estimate(std::size_t lines) const {
        return std::size_t(double(text_.size()) / double(at_) * double(lines) * 1.02);
    }
    // Returns the line in which the line of the last next() began.
    std::int64_t line() const { return first_line_; }
    template <class... Items> [[noreturn]] void fail_at(std::int64_t line, const Items&... items) const {
        fail(ErrorKind::io, "read_csv: ", path_, ": line ", line, ": ", items...);
    }

private:
    bool ends_line() const {
        return text_[at_] == '\n' || (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n');
    }
    void pass_line_end() {
        at_ += text_[at_] == '\r' ? 2 : 1;
        ++line_;
    }
    std::string_view plain() {
        const std::size_t start = at_;
        for (;; ++at_) {
            while (at_ < text_.size() && !special_[static_cast<unsigned char>(text_[at_])]) ++at_;
            if (at_ >= text_.size() || text_[at_] == delimiter_ || ends_line()) break;
            if (text_[at_] == '"')
                fail_at(line_,
                        "a quote follows text; a cell with quotes begins and ends with one, and has \"\" for "
                        "each inside");
            if (text_[at_] == '\0' || text_[at_] == '\r')
                fail_at(line_, "a byte 0 or a lone carriage return; lines of UTF-8 end in \\n or \\r\\n");
        }
        return text_.substr(start, at_ - start);
    }
    std::string_view quoted() {
        const std::int64_t start = line_;
        const std::size_t begin = at_ + 1;
        bool doubled = false;
        for (++at_;; ++at_) {
            if (at_ >= text_.size()) fail_at(start, "a quote is not closed");
            if (text_[at_] == '"' && (at_ + 1 >= text_.size() || text_[at_ + 1] != '"')) break;
            if (text_[at_] == '"') {
                ++at_;
                doubled = true;
            }
            line_ += text_[at_] == '\n';
        }
        const std::string_view cell = text_.substr(begin, at_ - begin);
        ++at_;
        if (at_ < text_.size() && text_[at_] != delimiter_ && !ends_line())
            fail_at(line_, "text follows a quote that closes a cell");
        return doubled ? without_doubled_quotes(cell) : cell;
    }
    std::string_view without_doubled_quotes(std::string_view cell) {
        rewritten_.clear();
        for (std::size_t i = 0; i < cell.size(); ++i) {
            rewritten_ += cell[i];
            i += cell[i] == '"';
        }
        return rewritten_;
    }

    const std::string& path_;
    std::string_view text_;
    char delimiter_;
    bool delimits_numbers_;
    std::array<bool, 256> special_{};  // characters that may end a cell without quotes, or are refused in it
    std::string rewritten_;            // a cell that differs from the file's text
    std::size_t at_ = 0;
    std::int64_t line_ = 1, first_line_ = 1;
};

void check_utf8(const CsvReader& reader, std::string_view text) {
    // UTF-16 has bytes 0, for which the reader has an error of its own.
    const std::size_t bad = io::first_invalid_utf8(text);
    if (bad == text.size()) return;
    if (text.find('\0') != std::string_view::npos) return;
    reader.fail_at(1 + std::count(text.begin(), text.begin() + std::ptrdiff_t(bad), '\n'),
                   "no valid UTF-8: byte ", int(static_cast<unsigned char>(text[bad])), " at ", bad,
                   "; convert the file to UTF-8");
}

void check_options(const CsvOptions& options) {
    check(options.delimiter != '"' && options.delimiter != '\n' && options.delimiter != '\r',
          ErrorKind::value, "read_csv: the delimiter is a quote or an end of a line");
}

std::vector<GrowingColumn> read_names(CsvReader& reader, const std::string& path, const CsvOptions& options) {
    std::vector<GrowingColumn> columns;
    const auto is_text = [&](const std::string& name) {
        return std::find(options.texts.begin(), options.texts.end(), name) != options.texts.end();
    };
    const std::size_t count = reader.next([&](std::size_t i) {
        const std::string_view cell = reader.cell();
        const std::string name = options.header ? std::string(cell) : std::to_string(i);
        columns.emplace_back(name, is_text(name));
    });
    check(count > 0, ErrorKind::io, "read_csv: ", path, ": is empty");
    for (const std::string& name : options.texts)
        check(std::any_of(columns.begin(), columns.end(), [&](const auto& c) { return c.name() == name; }),
              ErrorKind::value, "read_csv: ", path, ": texts names a column \"", name,
              "\" that is not there");
    if (!options.header) reader.restart();
    return columns;
}

// Calls take(i) for each cell of the remaining lines.
template <class Take> void read_rows(CsvReader& reader, std::vector<GrowingColumn>& columns,
                                     const CsvOptions& options, const Take& take) {
    constexpr std::size_t sample = 1000;
    for (std::size_t row = 1;; ++row) {
        const std::size_t cells = reader.next([&](std::size_t i) {
            if (i < columns.size())
                take(i);
            else
                reader.cell();
        });
        if (cells == 0) return;
        if (cells != columns.size())
            reader.fail_at(reader.line(), cells, cells == 1 ? " cell; " : " cells; ",
                           options.header ? "the header has " : "the first line has ", columns.size());
        if (row == sample)
            for (GrowingColumn& column : columns) column.reserve(reader.estimate(sample));
    }
}

// Reads columns again in which the first cells look like numbers and a later one does not, as columns of
// numbers store only the numbers.
void read_texts_again(CsvReader& reader, const CsvOptions& options, std::vector<GrowingColumn>& columns) {
    std::vector<bool> again;
    for (GrowingColumn& column : columns) {
        again.push_back(!column.complete());
        if (again.back()) column = GrowingColumn(column.name(), true);
    }
    if (std::find(again.begin(), again.end(), true) == again.end()) return;
    reader.restart();
    if (options.header) reader.next([&](std::size_t) { reader.cell(); });
    read_rows(reader, columns, options, [&](std::size_t i) {
        const std::string_view cell = reader.cell();
        if (again[i]) columns[i].add(cell);
    });
}

}  // namespace

Table read_csv(const std::string& path, const CsvOptions& options) {
    check_options(options);
    const std::vector<unsigned char> bytes = io::whole_file("read_csv", path);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    refuse_failed_download("read_csv: " + path, text);
    CsvReader reader(path, text, options.delimiter);
    check_utf8(reader, text);
    std::vector<GrowingColumn> columns = read_names(reader, path, options);
    read_rows(reader, columns, options, [&](std::size_t i) {
        GrowingColumn& column = columns[i];
        Number number;
        if (column.takes_numbers() && reader.number(number))
            column.add(number);
        else
            column.add(reader.cell());
    });
    read_texts_again(reader, options, columns);
    std::vector<Column> result;
    for (GrowingColumn& column : columns) result.push_back(column.finish());
    return Table(std::move(result));
}

}  // namespace mezzo::data
