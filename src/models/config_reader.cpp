// Reads and checks the fields of a config.json.
#include "models/config_reader.h"

#include "mezzo/error.h"

namespace mezzo::io {

namespace {

[[noreturn]] void fail_size(const std::string& where, const char* name, const std::string& value,
                            std::int64_t least) {
    fail(ErrorKind::value, where, ": ", name, " is ", value, "; ", least, " to ", max_config_size,
         " is expected");
}

}  // namespace

void check_size(const std::string& where, const char* name, std::int64_t value, std::int64_t least) {
    if (value < least || value > max_config_size) fail_size(where, name, std::to_string(value), least);
}

void check_fraction(const std::string& where, const char* name, double value, bool positive) {
    check((positive ? value > 0 : value >= 0) && value <= 1, ErrorKind::value, where, ": ", name, " is ",
          value, positive ? "; more than 0 and at most 1 is expected" : "; 0 to 1 is expected");
}

ConfigReader::ConfigReader(const JsonValue& object, const std::string& where)
    : object_(object), where_(where) {
    check(object.kind == JsonKind::object, ErrorKind::value, where, ": the file holds ", name(object.kind),
          ", not an object");
}

const JsonValue* ConfigReader::given(const char* key) const {
    const JsonValue* const value = object_.find(key);
    return value && value->kind != JsonKind::null ? value : nullptr;
}

void ConfigReader::wrong(const char* key, const JsonValue& value, const char* wanted) const {
    const std::string is = value.kind == JsonKind::string ? shown(value.text)
                           : value.kind == JsonKind::real || value.kind == JsonKind::negative
                               ? fmt::format("{}", value.number)
                               : name(value.kind);
    fail(ErrorKind::value, where_, ": ", key, " is ", is, "; ", wanted, " is expected");
}

void ConfigReader::read(const char* key, std::int64_t& value, std::int64_t least) const {
    const JsonValue* const found = object_.find(key);
    if (!found) return;
    if (found->kind != JsonKind::natural) wrong(key, *found, "a whole number");
    if (found->natural > std::uint64_t(max_config_size))
        fail_size(where_, key, std::to_string(found->natural), least);
    value = std::int64_t(found->natural);
}

void ConfigReader::read(const char* key, std::optional<std::int64_t>& value, std::int64_t least) const {
    if (!given(key)) return;
    value = 0;
    read(key, *value, least);
}

void ConfigReader::read(const char* key, double& value) const {
    const JsonValue* const found = object_.find(key);
    if (!found) return;
    if (found->kind != JsonKind::natural && found->kind != JsonKind::negative &&
        found->kind != JsonKind::real)
        wrong(key, *found, "a number");
    value = found->number;
}

void ConfigReader::read(const char* key, std::string& value) const {
    const JsonValue* const found = object_.find(key);
    if (!found) return;
    if (found->kind != JsonKind::string) wrong(key, *found, "a string");
    value = found->text;
}

void ConfigReader::read(const char* key, bool& value) const {
    const JsonValue* const found = given(key);
    if (!found) return;
    if (found->kind != JsonKind::boolean) wrong(key, *found, "true or false");
    value = found->flag;
}

void ConfigReader::expect(const char* key, const char* wanted) const {
    const JsonValue* const value = given(key);
    if (value && (value->kind != JsonKind::string || value->text != wanted)) wrong(key, *value, wanted);
}

void ConfigReader::expect(const char* key, bool wanted, const char* hint) const {
    bool value = wanted;
    read(key, value);
    check(value == wanted, ErrorKind::value, where_, ": ", key, " is ", value, "; ", hint);
}

}  // namespace mezzo::io
