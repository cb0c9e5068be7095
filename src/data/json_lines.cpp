// Reads tables from lines of JSON.
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "io/json.h"
#include "mezzo/data/table.h"
#include "mezzo/error.h"

namespace mezzo::data {

namespace {

using io::JsonKind;

// A column during reading.
struct Growing {
    std::string name;
    std::vector<double> numbers = {};
    std::vector<std::int64_t> integers = {};
    std::vector<std::string> texts = {};  // as a column of texts would hold them
    bool text = false, real = false;

    // Returns the value of a string that JsonLinesWriter writes for a number that JSON lacks; otherwise 0.
    static double not_finite(const io::JsonScalar& value) {
        if (value.kind != JsonKind::string) return 0;
        return value.text == "NaN"         ? std::nan("")
               : value.text == "Infinity"  ? HUGE_VAL
               : value.text == "-Infinity" ? -HUGE_VAL
                                           : 0;
    }

    void add_nothing() {
        numbers.push_back(std::nan(""));
        integers.push_back(0);
        texts.emplace_back();
        real = true;
    }
    void add(const io::JsonScalar& value) {
        constexpr auto most = std::uint64_t(std::numeric_limits<std::int64_t>::max());
        if (value.kind == JsonKind::null) return add_nothing();
        const bool flag = value.kind == JsonKind::boolean;
        const bool exact = value.kind == JsonKind::natural && value.natural <= most;
        const bool negative = value.kind == JsonKind::negative;
        const double special = not_finite(value);
        const bool is_text = value.kind == JsonKind::string && special == 0;
        text = text || is_text;
        real = real || !(flag || exact || negative || is_text);
        numbers.push_back(special != 0 ? special : flag ? double(value.flag) : value.number);
        integers.push_back(flag       ? std::int64_t(value.flag)
                           : exact    ? std::int64_t(value.natural)
                           : negative ? value.negative
                                      : 0);
        texts.push_back(value.kind == JsonKind::string ? value.text
                        : flag                         ? (value.flag ? "true" : "false")
                        : exact                        ? fmt::format("{}", value.natural)
                        : negative                     ? fmt::format("{}", value.negative)
                                                       : fmt::format("{}", value.number));
    }
    Column column() {
        const auto rows = std::int64_t(texts.size());
        if (text) return {std::move(name), ColumnKind::text, {}, std::move(texts)};
        if (real) return {std::move(name), ColumnKind::real, Tensor::from(numbers, {rows})};
        return {std::move(name), ColumnKind::integer, Tensor::from(integers, {rows})};
    }
};

class Growth {
public:
    void add_line(const std::string& where, const io::JsonValue& line) {
        check(line.kind == JsonKind::object, ErrorKind::io, where, ": is ", io::name(line.kind),
              ", not an object");
        for (const io::JsonMember& member : line.members) {
            const JsonKind kind = member.value.kind;
            check(kind != JsonKind::array && kind != JsonKind::object, ErrorKind::io, where, ": ",
                  io::shown(member.key), " is ", io::name(kind), "; a table holds numbers and texts");
            column(member.key).add(member.value);
        }
        ++lines_;
        for (Growing& column : columns_)
            if (column.texts.size() < lines_) column.add_nothing();
    }
    Table table() {
        std::vector<Column> columns;
        for (Growing& column : columns_) columns.push_back(column.column());
        return Table(std::move(columns));
    }

private:
    Growing& column(const std::string& name) {
        const auto [found, fresh] = place_.emplace(name, columns_.size());
        if (fresh) {
            columns_.push_back({.name = name});
            for (std::size_t i = 0; i < lines_; ++i) columns_.back().add_nothing();
        }
        return columns_[found->second];
    }
    std::vector<Growing> columns_;
    std::unordered_map<std::string, std::size_t> place_;
    std::size_t lines_ = 0;
};

}  // namespace

Table read_json_lines(const std::string& path) {
    Growth growth;
    std::int64_t number = 0;
    for (const std::string& line : read_lines(path)) {
        ++number;
        if (line.find_first_not_of(" \t") == std::string::npos) continue;
        const std::string where = fmt::format("read_json_lines: {}: line {}", path, number);
        growth.add_line(where, io::parse_json_tree(line, where));
    }
    return growth.table();
}

}  // namespace mezzo::data
