// Columns of a table that grow cell by cell and infer their kind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/data/table.h"

namespace mezzo::data {

struct Number {
    double real = 0;
    std::int64_t integer = 0;  // if it is whole
    bool whole = false;        // without a point or an exponent
};

// Reads the decimal number at the beginning of a text, such as "-12.5e3", and returns its end. Returns null
// in cases for std::from_chars: no number, or too many digits for a single rounding.
const char* scan_number(const char* begin, const char* end, Number& number);

// Column whose kind follows from its cells: integer if every cell is an integer; real if every cell is a
// number or empty, and at least one is not an integer; otherwise text.
class GrowingColumn {
public:
    GrowingColumn(std::string name, bool text)
        : name_(std::move(name)), kind_(text ? ColumnKind::text : ColumnKind::integer) {}
    const std::string& name() const { return name_; }
    bool takes_numbers() const { return kind_ != ColumnKind::text; }
    void reserve(std::size_t rows);
    void add(std::string_view cell);
    void add(const Number& number);  // if takes_numbers()
    // Returns false if the column is text, and cells that were stored as numbers must be read again.
    bool complete() const { return complete_; }
    Column finish();

private:
    void become_real();
    void become_text();

    std::string name_;
    ColumnKind kind_;
    bool any_number_ = false, complete_ = true;
    std::vector<std::int64_t> integers_ = {};
    std::vector<double> reals_ = {};
    std::vector<std::string> texts_ = {};
    // rows of integers that were "-0", which keeps its sign as a real number
    std::vector<std::size_t> negative_zeros_ = {};
};

}  // namespace mezzo::data
