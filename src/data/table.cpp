#include "mezzo/data/table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

#include "core/tensor_impl.h"
#include "io/whole_file.h"
#include "mezzo/error.h"
#include "mezzo/ops.h"

namespace mezzo::data {

namespace {

void check_column(const Column& column, std::int64_t rows) {
    const bool text = column.kind == ColumnKind::text;
    const auto count = text                      ? std::int64_t(column.texts.size())
                       : column.values.defined() ? column.values.numel()
                                                 : -1;
    check(count == rows, ErrorKind::value, "Table: column \"", column.name, "\" has ", count,
          " values, the first has ", rows);
    if (text) return;
    const Dtype dtype = column.kind == ColumnKind::integer ? int64 : float64;
    check(column.values.dtype() == dtype && column.values.dim() == 1, ErrorKind::value, "Table: column \"",
          column.name, "\" is ", column.values.dtype(), " ", column.values.shape(), ", not ", dtype,
          " [rows]");
}

// Throws Error(value) for a number outside the range of an integral dtype. Fractions are truncated.
void check_fits(const Column& column, Dtype dtype) {
    if (is_floating(dtype)) return;
    const double high = std::ldexp(1.0, dtype_info(dtype).significand_bits),  // exclusive
        low = dtype == uint8 ? 0 : -high;
    const auto refuse = [&](std::size_t row, auto value) {
        fail(ErrorKind::value, "Table: column \"", column.name, "\" has ", value, " in row ", row, ", which ",
             dtype, " cannot hold; take a floating dtype, or replace missing values first");
    };
    std::size_t row = 0;
    if (column.kind == ColumnKind::integer) {
        if (dtype == int64) return;
        for (const std::int64_t value : column.values.to_vector<std::int64_t>()) {
            if (double(value) < low || double(value) >= high) refuse(row, value);
            ++row;
        }
    } else {
        for (const double value : column.values.to_vector<double>()) {
            if (!(std::trunc(value) >= low && value < high)) refuse(row, value);
            ++row;
        }
    }
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
    if (columns_.empty()) return;
    const Column& first = columns_[0];
    rows_ = first.kind == ColumnKind::text ? std::int64_t(first.texts.size())
            : first.values.defined()       ? first.values.numel()
                                           : 0;
    std::unordered_set<std::string_view> names;
    for (const Column& column : columns_) {
        check(names.insert(column.name).second, ErrorKind::value, "Table: two columns are named \"",
              column.name, "\"");
        check_column(column, rows_);
    }
}

const Column& Table::column(std::string_view name) const {
    std::string known;
    for (const Column& column : columns_) {
        if (column.name == name) return column;
        known += (known.empty() ? "" : ", ") + column.name;
    }
    fail(ErrorKind::value, "Table: no column is named \"", name, "\"; there are: ", known);
}

Tensor Table::numbers(const std::vector<std::string>& names, Dtype dtype) const {
    check(is_floating(dtype) || (dtype != boolean && !has_exponent(dtype)), ErrorKind::dtype,
          "Table: numbers of ", dtype, "; the dtype must be floating or integral");
    Tensors parts;
    for (const std::string& name : names) {
        const Column& found = column(name);
        check(found.kind != ColumnKind::text, ErrorKind::value, "Table: column \"", name,
              "\" has texts; categories() makes numbers of them");
        check_fits(found, dtype);
        parts.push_back(found.values.to(dtype).unsqueeze(-1));
    }
    return parts.empty() ? empty({rows_, 0}, {.dtype = dtype}) : cat(parts, 1);
}

Categories Table::categories(std::string_view name) const {
    const Column& found = column(name);
    check(found.kind != ColumnKind::real, ErrorKind::value, "Table: column \"", name,
          "\" has real numbers, which are no classes");
    std::vector<std::string> names = found.texts;
    std::vector<std::int64_t> codes(static_cast<std::size_t>(rows_));
    if (found.kind == ColumnKind::integer) {
        std::map<std::int64_t, std::int64_t> code_of;
        const std::vector<std::int64_t> values = found.values.to_vector<std::int64_t>();
        for (const std::int64_t value : values) code_of[value] = 0;
        for (auto& [value, code] : code_of) {
            code = std::int64_t(names.size());
            names.push_back(std::to_string(value));
        }
        for (std::size_t i = 0; i < values.size(); ++i) codes[i] = code_of[values[i]];
    } else {
        std::sort(names.begin(), names.end());
        names.erase(std::unique(names.begin(), names.end()), names.end());
        for (std::size_t i = 0; i < codes.size(); ++i)
            codes[i] = std::lower_bound(names.begin(), names.end(), found.texts[i]) - names.begin();
    }
    return {Tensor::from(codes, {rows_}), names};
}

std::vector<std::string> read_lines(const std::string& path) { return io::file_lines("read_lines", path); }

}  // namespace mezzo::data
