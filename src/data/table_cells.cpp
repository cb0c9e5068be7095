#include "data/table_cells.h"

#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdlib>

namespace mezzo::data {

namespace {

// What a number beyond T's range becomes. An integer is left to the reals; a real is 0 or infinite, whatever the
// locale's decimal point is.
bool round_to_range(const std::string&, std::int64_t&) { return false; }
bool round_to_range(const std::string& cell, double& value) {
    static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
    value = strtod_l(cell.c_str(), nullptr, c_locale);
    return true;
}

// The whole cell, without blanks around it, as a number.
template <class T> bool parse(std::string_view cell, T& value) {
    while (!cell.empty() && (cell.front() == ' ' || cell.front() == '\t')) cell.remove_prefix(1);
    while (!cell.empty() && (cell.back() == ' ' || cell.back() == '\t')) cell.remove_suffix(1);
    if (cell.starts_with('+') && !cell.starts_with("+-")) cell.remove_prefix(1);
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (cell.empty() || end != cell.data() + cell.size()) return false;
    if (error == std::errc::result_out_of_range) return round_to_range(std::string(cell), value);
    return error == std::errc();
}

template <class T> bool parse_all(const Cells& cells, bool may_be_empty, std::vector<T>& values) {
    bool any = false;
    values.reserve(cells.values.size());
    for (const std::string_view cell : cells.values) {
        T value{};
        if (cell.empty() && may_be_empty) {
            values.push_back(T(std::nan("")));
        } else {
            if (!parse(cell, value)) return false;
            values.push_back(value);
            any = true;
        }
    }
    return any;
}

}  // namespace

Column infer_column(Cells cells) {
    const auto rows = std::int64_t(cells.values.size());
    std::vector<std::int64_t> integers;
    if (!cells.text && parse_all(cells, false, integers))
        return {std::move(cells.name), ColumnKind::integer, Tensor::from(integers, {rows})};
    std::vector<double> reals;
    if (!cells.text && parse_all(cells, true, reals))
        return {std::move(cells.name), ColumnKind::real, Tensor::from(reals, {rows})};
    return {std::move(cells.name), ColumnKind::text, {}, {cells.values.begin(), cells.values.end()}};
}

}  // namespace mezzo::data
