// The objects of a tokenizer's JSON files, field by field, with errors that say where a value stands.
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

// Ids and indices of tokens are below this, so that a file of a few bytes cannot ask for tables of gigabytes.
inline constexpr std::int64_t max_id = 1 << 24;

// One object. All functions throw Error(value), with the way to the field, for a value of another kind than
// the one they return.
class Fields {
public:
    // `where` is what error texts begin with, such as "tokenizer: FILE: model".
    Fields(const JsonValue& object, std::string where);

    [[nodiscard]] const std::string& where() const { return where_; }
    [[nodiscard]] const JsonValue& object() const { return object_; }
    // Null if there is none. In these files the value null stands for a missing one.
    const JsonValue* find(const char* key);
    const JsonValue& need(const char* key);

    const std::string& text(const char* key);
    std::string text(const char* key, const char* fallback);
    bool flag(const char* key, bool fallback);
    // 0 to most.
    std::int64_t integer(const char* key, std::int64_t most);
    std::int64_t integer(const char* key, std::int64_t most, std::int64_t fallback);
    // A string of exactly one character.
    std::string character(const char* key);
    Fields fields(const char* key);
    const std::vector<JsonValue>& items(const char* key);

    // Throws Error(value) if there is a field that nobody has asked for: what is not known is refused.
    void done() const;
    // The same, except that fields of other types of components are ignored, as the reference does: published
    // files have ByteLevel's use_regex in a Digits, and the like.
    void done_with_component() const;
    // Throws Error(value): where, then `what`.
    [[noreturn]] void refuse(std::string_view what) const;

private:
    [[noreturn]] void wrong(const char* key, const JsonValue& value, const char* wanted) const;
    const JsonValue& object_;
    std::string where_;
    std::vector<bool> read_;
};

// A value of an array or object that must be of this kind.
const std::string& text_of(const JsonValue& value, const std::string& where);
std::int64_t integer_of(const JsonValue& value, const std::string& where, std::int64_t most);

// Calls read(Fields&) for a component, or for each one of a "Sequence", whose list is the field `list`.
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
