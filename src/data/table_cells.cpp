#include "data/table_cells.h"

#include <bit>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace mezzo::data {

namespace {

// Converts a number beyond T's range. Integers are left to the conversion to real; a real becomes 0 or
// infinite, whatever the locale's decimal point.
bool round_to_range(const std::string&, std::int64_t&) { return false; }
bool round_to_range(const std::string& cell, double& value) {
    static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
    value = strtod_l(cell.c_str(), nullptr, c_locale);
    return true;
}

template <class T> bool parse(std::string_view cell, T& value) {
    if (cell.starts_with('+') && !cell.starts_with("+-")) cell.remove_prefix(1);
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (cell.empty() || end != cell.data() + cell.size()) return false;
    if (error == std::errc::result_out_of_range) return round_to_range(std::string(cell), value);
    return error == std::errc();
}

// Reads the whole cell, without blanks around it, as a number.
bool parse(std::string_view cell, Number& number) {
    while (!cell.empty() && (cell.front() == ' ' || cell.front() == '\t')) cell.remove_prefix(1);
    while (!cell.empty() && (cell.back() == ' ' || cell.back() == '\t')) cell.remove_suffix(1);
    const char* const end = cell.data() + cell.size();
    if (scan_number(cell.data(), end, number) == end) return !cell.empty();
    number.whole = parse(cell, number.integer);
    return parse(cell, number.real);
}

constexpr int exact_powers = 23;  // of ten, in float64
constexpr double power_of_ten[exact_powers] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                               1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                               1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

constexpr std::uint64_t whole_power_of_ten[] = {1,      10,      100,      1000,     10000,
                                                100000, 1000000, 10000000, 100000000};

// Appends the digits at `at` to a number, and returns their end. Reads eight bytes at a time, so that varying
// lengths cost no mispredicted branches.
[[gnu::always_inline]] inline const char* scan_digits(const char* at, const char* end,
                                                      std::uint64_t& number) {
    if constexpr (std::endian::native == std::endian::little) {
        while (end - at >= 8) {
            std::uint64_t x = 0;
            std::memcpy(&x, at, sizeof x);
            x ^= 0x3030303030303030;  // each digit becomes its value, other bytes more than 9
            const std::uint64_t others = (x | (x + 0x7676767676767676)) & 0x8080808080808080;
            const int digits = others == 0 ? 8 : std::countr_zero(others) / 8;
            if (digits == 0) return at;
            x <<= 64 - 8 * digits;  // the first digit is in the lowest byte: leading zeros
            x = x * 10 + (x >> 8);  // two digits in each second byte, then four, then eight
            x = ((x & 0x000000ff000000ff) * 0x000f424000000064 +
                 (x >> 16 & 0x000000ff000000ff) * 0x0000271000000001) >>
                32;
            number = number * whole_power_of_ten[digits] + x;
            at += digits;
            if (digits < 8) return at;
        }
    }
    for (; at < end && unsigned(*at - '0') < 10; ++at) number = number * 10 + unsigned(*at - '0');
    return at;
}

}  // namespace

const char* scan_number(const char* at, const char* end, Number& number) {
    // Branch-free sign: no processor predicts it.
    const bool negative = at < end && *at == '-', positive = at < end && *at == '+';
    at += int(negative) | int(positive);
    std::uint64_t digits = 0;
    const char* const first = at;
    for (; at < end && unsigned(*at - '0') < 10; ++at) digits = digits * 10 + unsigned(*at - '0');
    std::int64_t count = at - first, exponent = 0;
    number.whole = true;
    if (at < end && *at == '.') {
        number.whole = false;
        const char* const fraction = ++at;
        at = scan_digits(at, end, digits);
        exponent = fraction - at;
        count -= exponent;
    }
    if (count < 1 || count > 18) return nullptr;  // 19 digits may exceed an int64
    if (at < end && (*at == 'e' || *at == 'E')) {
        number.whole = false;
        const bool below = ++at < end && *at == '-';
        if (at < end && (*at == '-' || *at == '+')) ++at;
        std::uint64_t power = 0;
        const char* const start = at;
        for (; at < end && unsigned(*at - '0') < 10; ++at) power = power * 10 + unsigned(*at - '0');
        if (at == start || at - start > 4) return nullptr;
        exponent += below ? -std::int64_t(power) : std::int64_t(power);
    }
    number.integer = (std::int64_t(digits) ^ -std::int64_t(negative)) + std::int64_t(negative);
    number.real = double(std::int64_t(digits));
    if (exponent != 0) {
        // Both operands are exact, so the quotient or product is the only rounding (Clinger 1990).
        if (digits > std::uint64_t(1) << 53 || std::abs(exponent) >= exact_powers) return nullptr;
        if (exponent < 0)
            number.real /= power_of_ten[-exponent];
        else
            number.real *= power_of_ten[exponent];
    }
    number.real =
        std::bit_cast<double>(std::bit_cast<std::uint64_t>(number.real) ^ std::uint64_t(negative) << 63);
    return at;
}

void GrowingColumn::become_real() {
    kind_ = ColumnKind::real;
    reals_.reserve(integers_.capacity());
    reals_.assign(integers_.begin(), integers_.end());
    for (const std::size_t row : negative_zeros_) reals_[row] = -0.0;
    integers_ = {};
    negative_zeros_ = {};
}

void GrowingColumn::become_text() {
    kind_ = ColumnKind::text;
    complete_ = !any_number_;
    if (complete_) texts_.resize(reals_.size());  // all were empty
    integers_ = {};
    reals_ = {};
}

void GrowingColumn::reserve(std::size_t rows) {
    if (kind_ == ColumnKind::integer)
        integers_.reserve(rows);
    else if (kind_ == ColumnKind::real)
        reals_.reserve(rows);
    else if (complete_)
        texts_.reserve(rows);
}

void GrowingColumn::add(const Number& number) {
    any_number_ = true;
    if (kind_ == ColumnKind::integer && !number.whole) become_real();
    if (kind_ == ColumnKind::real) {
        reals_.push_back(number.real);
        return;
    }
    if (number.integer == 0 && std::signbit(number.real)) negative_zeros_.push_back(integers_.size());
    integers_.push_back(number.integer);
}

void GrowingColumn::add(std::string_view cell) {
    Number number;
    if (takes_numbers() && cell.empty()) {
        if (kind_ == ColumnKind::integer) become_real();
        reals_.push_back(std::nan(""));
    } else if (takes_numbers() && parse(cell, number)) {
        add(number);
    } else {
        if (takes_numbers()) become_text();
        if (complete_) texts_.emplace_back(cell);
    }
}

Column GrowingColumn::finish() {
    if (takes_numbers() && !any_number_) become_text();
    if (kind_ == ColumnKind::integer)
        return {std::move(name_), kind_, Tensor::from(integers_, {std::int64_t(integers_.size())})};
    if (kind_ == ColumnKind::real)
        return {std::move(name_), kind_, Tensor::from(reals_, {std::int64_t(reals_.size())})};
    return {std::move(name_), kind_, {}, std::move(texts_)};
}

}  // namespace mezzo::data
