// CSV as RFC 4180 has it.
#include <algorithm>
#include <array>
#include <deque>

#include "core/file_kind.h"
#include "data/table_cells.h"
#include "data/unicode.h"
#include "data/whole_file.h"
#include "mezzo/error.h"

namespace mezzo::data {

namespace {

class CsvReader {
public:
    CsvReader(const std::string& path, std::string_view text, char delimiter)
        : path_(path), text_(text), delimiter_(delimiter) {
        if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // a byte order mark
        for (const char c : {'\n', '\r', '"', '\0', delimiter})
            special_[static_cast<unsigned char>(c)] = true;
    }
    // The cells of the next line that is not empty, which live as long as the reader and the text; false at the
    // end.
    bool next(std::vector<std::string_view>& cells) {
        while (at_ < text_.size() && ends_line()) pass_line_end();
        cells.clear();
        if (at_ >= text_.size()) return false;
        first_line_ = line_;
        for (;;) {
            cells.push_back(at_ < text_.size() && text_[at_] == '"' ? quoted() : plain());
            if (at_ >= text_.size()) return true;
            if (ends_line()) {
                pass_line_end();
                return true;
            }
            ++at_;  // the delimiter
        }
    }
    // Where the line began that next() has given.
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
        std::string& result = rewritten_.emplace_back();
        for (std::size_t i = 0; i < cell.size(); ++i) {
            result += cell[i];
            i += cell[i] == '"';
        }
        return result;
    }

    const std::string& path_;
    std::string_view text_;
    char delimiter_;
    std::array<bool, 256> special_{};    // characters at which a cell without quotes may end or be refused
    std::deque<std::string> rewritten_;  // cells that are not in the file as they are
    std::size_t at_ = 0;
    std::int64_t line_ = 1, first_line_ = 1;
};

void check_utf8(const CsvReader& reader, std::string_view text) {
    // UTF-16 has bytes 0, for which the reader has an error of its own.
    std::size_t bad = 0;
    while (bad < text.size()) {
        const bool ascii = static_cast<unsigned char>(text[bad]) < 0x80;
        const std::size_t bytes = ascii ? 1 : decode_utf8(text.substr(bad)).bytes;
        if (!ascii && bytes == 1) break;
        bad += bytes;
    }
    if (bad == text.size() || text.find('\0') != std::string_view::npos) return;
    reader.fail_at(1 + std::count(text.begin(), text.begin() + std::ptrdiff_t(bad), '\n'),
                   "no valid UTF-8: byte ", int(static_cast<unsigned char>(text[bad])), " at ", bad,
                   "; convert the file to UTF-8");
}

void check_options(const CsvOptions& options) {
    check(options.delimiter != '"' && options.delimiter != '\n' && options.delimiter != '\r',
          ErrorKind::value, "read_csv: the delimiter is a quote or an end of a line");
}

void mark_texts(const std::string& path, const CsvOptions& options, std::vector<Cells>& columns) {
    for (const std::string& name : options.texts) {
        const auto found =
            std::find_if(columns.begin(), columns.end(), [&](const Cells& c) { return c.name == name; });
        check(found != columns.end(), ErrorKind::value, "read_csv: ", path, ": texts names a column \"", name,
              "\" that is not there");
        found->text = true;
    }
}

}  // namespace

Table read_csv(const std::string& path, const CsvOptions& options) {
    check_options(options);
    const std::vector<unsigned char> bytes = whole_file("read_csv", path);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    refuse_failed_download("read_csv: " + path, text);
    CsvReader reader(path, text, options.delimiter);
    check_utf8(reader, text);
    std::vector<Cells> columns;
    std::vector<std::string_view> cells;
    bool more = reader.next(cells);
    check(more, ErrorKind::io, "read_csv: ", path, ": is empty");
    for (std::size_t i = 0; i < cells.size(); ++i)
        columns.push_back({.name = options.header ? std::string(cells[i]) : std::to_string(i)});
    if (options.header) more = reader.next(cells);
    mark_texts(path, options, columns);
    for (; more; more = reader.next(cells)) {
        if (cells.size() != columns.size())
            reader.fail_at(reader.line(), cells.size(), cells.size() == 1 ? " cell; " : " cells; ",
                           options.header ? "the header has " : "the first line has ", columns.size());
        for (std::size_t i = 0; i < cells.size(); ++i) columns[i].values.push_back(cells[i]);
    }
    std::vector<Column> result;
    for (Cells& column : columns) result.push_back(infer_column(std::move(column)));
    return Table(std::move(result));
}

}  // namespace mezzo::data
