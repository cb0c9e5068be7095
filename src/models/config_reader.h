// Reads and checks the fields of a config.json.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/json.h"

namespace mezzo::io {

inline constexpr std::uint64_t max_config_bytes = 16000000;
// Limit that keeps every product of two sizes, and its bytes, far from overflow.
inline constexpr std::int64_t max_config_size = 1 << 24;

template <class Config> struct IntegerField {
    const char* name;
    std::int64_t Config::*value;
    std::int64_t least;
};
template <class Config> struct RealField {
    const char* name;
    double Config::*value;
    bool positive;  // otherwise 0 is allowed
};

// Both throw Error(value): check_size() unless the size is from `least` to max_config_size, check_fraction()
// unless the number is from 0 (above 0, if positive) to 1.
void check_size(const std::string& where, const char* name, std::int64_t value, std::int64_t least);
void check_fraction(const std::string& where, const char* name, double value, bool positive);

// The fields of one file. Error messages begin with `where`.
class ConfigReader {
public:
    ConfigReader(const JsonValue& object, const std::string& where);

    // Returns a field's value, or null if it is missing or null.
    const JsonValue* given(const char* key) const;
    [[noreturn]] void wrong(const char* key, const JsonValue& value, const char* wanted) const;
    // Each read() stores the field's value; a missing field leaves `value` as it is.
    void read(const char* key, std::int64_t& value, std::int64_t least) const;
    void read(const char* key, std::optional<std::int64_t>& value, std::int64_t least) const;
    void read(const char* key, double& value) const;
    void read(const char* key, std::string& value) const;
    void read(const char* key, bool& value) const;
    template <class Config> void read(std::span<const IntegerField<Config>> fields, Config& config) const {
        for (const auto& field : fields) read(field.name, config.*field.value, field.least);
    }
    template <class Config> void read(std::span<const RealField<Config>> fields, Config& config) const {
        for (const auto& field : fields) read(field.name, config.*field.value);
    }
    // Throws Error(value) if the field exists and has any other value.
    void expect(const char* key, const char* wanted) const;
    void expect(const char* key, bool wanted, const char* hint) const;

    const JsonValue& object() const { return object_; }
    const std::string& where() const { return where_; }

private:
    const JsonValue& object_;
    const std::string& where_;
};

template <class Config> void check_fields(std::span<const IntegerField<Config>> integers,
                                          std::span<const RealField<Config>> reals, const Config& config,
                                          const std::string& where) {
    for (const auto& field : integers) check_size(where, field.name, config.*field.value, field.least);
    for (const auto& field : reals) check_fraction(where, field.name, config.*field.value, field.positive);
}

// Writes a config.json, field by field.
class ConfigWriter {
public:
    ConfigWriter(const char* architecture, const char* model_type)
        : text_(fmt::format("{{\n  \"architectures\": [\"{}\"],\n  \"model_type\": \"{}\"", architecture,
                            model_type)) {}
    // Adds a number, true, false, or JSON text; null for an optional without a value.
    template <class T> void add(const char* name, const T& value) {
        text_ += fmt::format(",\n  \"{}\": {}", name, value);
    }
    template <class T> void add(const char* name, const std::optional<T>& value) {
        value ? add(name, *value) : add(name, "null");
    }
    template <class Config> void add(std::span<const IntegerField<Config>> fields, const Config& config) {
        for (const auto& field : fields) add(field.name, config.*field.value);
    }
    template <class Config> void add(std::span<const RealField<Config>> fields, const Config& config) {
        for (const auto& field : fields) add(field.name, config.*field.value);
    }
    std::string text() const { return text_ + "\n}\n"; }

private:
    std::string text_;
};

}  // namespace mezzo::io
