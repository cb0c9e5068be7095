// Columns of a table that grow cell by cell and infer their kind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/table.h"

namespace mezzo::data {

struct Number {
    double real = 0;
    std::int64_t integer = 0;  // if it is whole
    bool whole = false;        // without a point and an exponent
};

// Reads the decimal number, such as "-12.5e3", that a text begins with, and returns its end. Returns null for what
// this fast path leaves to std::from_chars: no number, or one of too many digits to be rounded once.
const char* scan_number(const char* begin, const char* end, Number& number);

// Column whose kind follows from its cells: integer if every cell is one; real if every cell is a number or
// empty, and one is not an integer; else text.
class GrowingColumn {
public:
    GrowingColumn(std::string name, bool text)
        : name_(std::move(name)), kind_(text ? ColumnKind::text : ColumnKind::integer) {}
    const std::string& name() const { return name_; }
    bool takes_numbers() const { return kind_ != ColumnKind::text; }
    void reserve(std::size_t rows);
    void add(std::string_view cell);
    void add(const Number& number);  // if it takes numbers
    // False if the column is one of texts, and cells that were stored as numbers have to be read again.
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
    std::vector<std::size_t> negative_zeros_ = {};  // rows of integers: as a real number, "-0" has a sign
};

}  // namespace mezzo::data
