// Readers for text files: CSV and JSON lines as a Table of columns, and plain lines.
//
//   const data::Table flowers = data::read_csv("flowers.csv");
//   x = flowers.numbers({"length", "width"});
//   labels = flowers.categories("species").codes;
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

enum class ColumnKind : std::uint8_t { integer, real, text };

struct Column {
    std::string name;
    ColumnKind kind = ColumnKind::text;
    Tensor values = {};  // of a column of numbers: int64 or float64 [rows]; NaN for missing values
    std::vector<std::string> texts = {};  // of a column of texts; empty for missing values
};

// A column as class indices.
struct Categories {
    Tensor codes;                    // int64 [rows]
    std::vector<std::string> names;  // of the codes, sorted
};

class Table {
public:
    // Throws Error(value) for columns of different lengths, names that are used twice, and values that do not
    // match the kind.
    explicit Table(std::vector<Column> columns);
    [[nodiscard]] std::int64_t size() const { return rows_; }
    [[nodiscard]] const std::vector<Column>& columns() const { return columns_; }
    // Throws Error(value) for an unknown name; the message lists the columns.
    [[nodiscard]] const Column& column(std::string_view name) const;
    // The columns as one tensor, [rows, names]. Throws Error(value) for unknown names and columns of texts,
    // Error(dtype) unless the dtype is floating or integral. If an integral dtype cannot hold a number or a
    // missing cell, throws Error(value).
    [[nodiscard]] Tensor numbers(const std::vector<std::string>& names, Dtype dtype = float32) const;
    // A column of texts or integers as class indices.
    [[nodiscard]] Categories categories(std::string_view name) const;

private:
    std::vector<Column> columns_;
    std::int64_t rows_ = 0;
};

struct CsvOptions {
    char delimiter = ',';
    bool header = true;                   // the first line has the names; else they are "0", "1", …
    std::vector<std::string> texts = {};  // columns that stay texts even where every cell looks like a number
};
// Reads a CSV file (RFC 4180, UTF-8 with or without a byte order mark, lines may end in CRLF, empty lines are
// left out). A column is integer if every cell is one; real if every cell is a number, "nan", "inf" or empty;
// else text. A number too large for float64 is infinite, and one too small is 0. Throws Error(io) for a file
// that cannot be read, has more than 1 GiB, or is malformed, with the number of the line: cells more or less
// than the header has, a quote that is not closed or follows text, a byte 0 or a carriage return without a
// newline outside of quotes, bytes that are not UTF-8; and Error(value) for a name that is used twice, and
// invalid options.
[[nodiscard]] Table read_csv(const std::string& path, const CsvOptions& options = {});

// Reads a file with one JSON object per line. Each name is a column, in the order in which they come;
// booleans are 0 and 1, and null is what a line without the name has. Kinds are as for CSV, but a string is a
// text unless its column has only numbers and JsonLinesWriter's "NaN", "Infinity" and "-Infinity". A byte
// order mark in front is skipped. Throws Error(io), with the number of the line, for a line that is not an
// object, and for nested arrays and objects.
[[nodiscard]] Table read_json_lines(const std::string& path);

// The lines of a file without their ends, "\n" or "\r\n", and without a byte order mark in front. Throws
// Error(io).
[[nodiscard]] std::vector<std::string> read_lines(const std::string& path);

}  // namespace mezzo::data

#pragma GCC visibility pop
