// JSON of untrusted files: a strict parser without recursion, a small value tree, and quoting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/internal.h"

namespace mezzo::io {

enum class JsonKind : std::uint8_t { null, boolean, natural, negative, real, string, array, object };
MEZZO_INTERNAL const char* name(JsonKind kind);  // for error messages: "a string", "a negative number"

// A value that is neither array nor object.
struct JsonScalar {
    JsonKind kind = JsonKind::null;
    bool flag = false;
    std::uint64_t natural = 0;
    std::int64_t negative = 0;
    double number = 0;  // of natural, negative and real
    std::string text;
};

// Receives the events of parse_json(), in the order of the text. Handlers may throw.
class JsonHandler {
public:
    virtual ~JsonHandler() = default;
    virtual void begin(JsonKind kind) = 0;  // an array or an object
    virtual void end() = 0;
    virtual void key(std::string& text) = 0;
    virtual void scalar(JsonScalar& value) = 0;
};

// Parses one JSON text (RFC 8259, UTF-8, no byte order mark). Error messages begin with `where`, such as
// "safetensors: FILE". The handler must refuse names that occur twice in an object.
void parse_json(std::string_view text, const std::string& where, JsonHandler& handler);

struct JsonMember;
// A value as a tree.
struct MEZZO_INTERNAL JsonValue : JsonScalar {
    std::vector<JsonMember> members;  // of an object, in the order of the text
    std::vector<JsonValue> items;     // of an array
    const JsonValue* find(std::string_view key) const;
};
struct JsonMember {
    std::string key;
    JsonValue value;
};
// Parses a whole text into a tree. Refuses names that occur twice in an object, more than 64 levels and more
// than max_values values, each of which takes at least 100 bytes.
MEZZO_INTERNAL JsonValue parse_json_tree(std::string_view text, const std::string& where,
                                         int max_values = 1000000);

// Returns the position of the first byte that is not part of valid UTF-8, or the size of the text.
MEZZO_INTERNAL std::size_t first_invalid_utf8(std::string_view text);
// Appends text in JSON quotes; the text must be valid UTF-8.
MEZZO_INTERNAL void append_quoted(std::string& out, std::string_view text);
// Formats a name from a file for an error message: quoted, control characters escaped, '?' for each invalid
// byte of UTF-8, shortened beyond 120 bytes.
MEZZO_INTERNAL std::string shown(std::string_view text);
// A name for a table: as shown() if it is long or has characters that would disturb the table.
inline std::string readable(const std::string& name) {
    const std::string quoted = shown(name);
    return quoted.size() == name.size() + 2 ? name : quoted;
}

}  // namespace mezzo::io
