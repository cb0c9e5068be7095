// Reads the objects of a tokenizer's JSON files field by field. Errors name the path of the field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "mezzo/error.h"

namespace mezzo::data::tokenizer {

using io::JsonKind;
using io::JsonValue;

// Limit for ids and indices of tokens, so that a file of a few bytes cannot cause tables of gigabytes.
inline constexpr std::int64_t max_id = 1 << 24;

// One object. All functions throw Error(value), with the path of the field, if a value's kind differs from
// the one they return.
class Fields {
public:
    // `where` is the beginning of error messages, such as "tokenizer: FILE: model".
    Fields(const JsonValue& object, std::string where);

    [[nodiscard]] const std::string& where() const { return where_; }
    [[nodiscard]] const JsonValue& object() const { return object_; }
    // Returns null if the field is missing. In these files the value null also means missing.
    const JsonValue* find(const char* key);
    const JsonValue& need(const char* key);

    const std::string& text(const char* key);
    std::string text(const char* key, const char* fallback);
    bool flag(const char* key, bool fallback);
    // From 0 to `most`.
    std::int64_t integer(const char* key, std::int64_t most);
    std::int64_t integer(const char* key, std::int64_t most, std::int64_t fallback);
    // Returns a string of exactly one character.
    std::string character(const char* key);
    Fields fields(const char* key);
    const std::vector<JsonValue>& items(const char* key);

    // Throws Error(value) if a field has not been read: unknown fields are refused.
    void done() const;
    // The same, except that fields of other types of components are ignored, as in the reference: published
    // files have ByteLevel's use_regex in a Digits, for example.
    void done_with_component() const;
    // Throws Error(value) with the message `where` and `what`.
    [[noreturn]] void refuse(std::string_view what) const;

private:
    [[noreturn]] void wrong(const char* key, const JsonValue& value, const char* wanted) const;
    const JsonValue& object_;
    std::string where_;
    std::vector<bool> read_;
};

// Both return a value of an array or object, which must be of this kind.
const std::string& text_of(const JsonValue& value, const std::string& where);
std::int64_t integer_of(const JsonValue& value, const std::string& where, std::int64_t most);

// Calls read(Fields&) for a component, or for each component in the list of a "Sequence", which is the field
// `list`.
template <class Read> void each_component(Fields component, const char* list, const Read& read) {
    if (component.text("type") != "Sequence") {
        read(component);
        component.done_with_component();
        return;
    }
    std::size_t index = 0;
    for (const JsonValue& item : component.items(list))
        each_component(Fields(item, component.where() + "." + list + "[" + std::to_string(index++) + "]"),
                       list, read);
    component.done_with_component();
}

}  // namespace mezzo::data::tokenizer
