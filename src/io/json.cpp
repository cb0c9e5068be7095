#include "io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/sorting.h"
#include "core/system/file_kind.h"
#include "mezzo/error.h"

namespace mezzo::io {

const char* name(JsonKind kind) {
    constexpr const char* names[] = {"null",     "true or false", "a whole number", "a negative number",
                                     "a number", "a string",      "an array",       "an object"};
    return names[static_cast<int>(kind)];
}

namespace {

// Passes the events of nlohmann's parser to a handler.
class Events {
public:
    using json = nlohmann::json;
    Events(const std::string& where, JsonHandler& handler) : where_(where), handler_(handler) {}

    bool null() { return pass({}); }
    bool boolean(bool value) { return pass({.kind = JsonKind::boolean, .flag = value, .text = {}}); }
    // The parser calls this only for numbers with a minus sign, including "-0".
    bool number_integer(json::number_integer_t value) {
        return pass({.kind = JsonKind::negative, .negative = value, .number = double(value), .text = {}});
    }
    bool number_unsigned(json::number_unsigned_t value) {
        return pass({.kind = JsonKind::natural, .natural = value, .number = double(value), .text = {}});
    }
    bool number_float(json::number_float_t value, const json::string_t&) {
        return pass({.kind = JsonKind::real, .number = value, .text = {}});
    }
    bool string(json::string_t& value) { return pass({.kind = JsonKind::string, .text = std::move(value)}); }
    bool binary(json::binary_t&) { return false; }  // not in JSON
    bool start_object(std::size_t) { return begin(JsonKind::object); }
    bool start_array(std::size_t) { return begin(JsonKind::array); }
    bool end_object() { return end(); }
    bool end_array() { return end(); }
    bool key(json::string_t& value) {
        handler_.key(value);
        return true;
    }
    // Drops the text that the parser's message quotes, which may be long and contain any bytes.
    bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
        std::string_view reason = error.what();
        if (const std::size_t end = reason.find("] "); end != reason.npos) reason.remove_prefix(end + 2);
        if (const std::size_t colon = reason.find(": "); colon != reason.npos)
            reason.remove_prefix(colon + 2);
        reason = reason.substr(0, reason.find("; last read"));
        fail(ErrorKind::io, where_, ": no valid JSON at byte ", position, ": ", reason.substr(0, 200));
    }

private:
    bool pass(JsonScalar value) {
        handler_.scalar(value);
        return true;
    }
    bool begin(JsonKind kind) {
        handler_.begin(kind);
        return true;
    }
    bool end() {
        handler_.end();
        return true;
    }
    const std::string& where_;
    JsonHandler& handler_;
};

// Builds a tree. Incomplete values are in a separate list, so that no pointer refers into a growing vector.
class TreeBuilder : public JsonHandler {
public:
    TreeBuilder(const std::string& where, int max_values) : where_(where), max_values_(max_values) {}

    void begin(JsonKind kind) override {
        count();
        check(open_.size() < 64, ErrorKind::io, where_, ": JSON with more than 64 levels");
        open_.emplace_back();
        open_.back().value.kind = kind;
        open_.back().key = std::move(key_);
    }
    void end() override {
        JsonMember done = std::move(open_.back());
        open_.pop_back();
        if (done.value.kind == JsonKind::object) check_names(done.value.members);
        key_ = std::move(done.key);
        place(std::move(done.value));
    }
    void key(std::string& text) override { key_ = std::move(text); }
    void scalar(JsonScalar& value) override {
        count();
        JsonValue leaf;
        static_cast<JsonScalar&>(leaf) = std::move(value);
        place(std::move(leaf));
    }
    JsonValue result;

private:
    void count() {
        check(++values_ <= max_values_, ErrorKind::io, where_, ": JSON with more than ", max_values_,
              " values");
    }
    void place(JsonValue value) {
        if (open_.empty()) {
            result = std::move(value);
        } else if (JsonValue& parent = open_.back().value; parent.kind == JsonKind::object) {
            parent.members.push_back({std::move(key_), std::move(value)});
        } else {
            parent.items.push_back(std::move(value));
        }
    }
    void check_names(const std::vector<JsonMember>& members) const {
        std::vector<std::string_view> keys;
        keys.reserve(members.size());
        for (const JsonMember& member : members) keys.push_back(member.key);
        if (const std::string_view twice = repeated(keys); twice.data() != nullptr)
            fail(ErrorKind::io, where_, ": ", shown(twice), " occurs twice");
    }
    const std::string& where_;
    std::vector<JsonMember> open_;
    std::string key_;
    int max_values_, values_ = 0;
};

// The length of the UTF-8 sequence at the front (Unicode 15, table 3-7); 0 if it is not valid.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return i < text.size() ? (unsigned char)(text[i]) : 0u; };
    const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
    const unsigned first = byte(0), second = byte(1);
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef) {
        const bool good =
            second >= (first == 0xe0 ? 0xa0u : 0x80u) && second <= (first == 0xed ? 0x9fu : 0xbfu);
        return good && tail(2) ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        const bool good =
            second >= (first == 0xf0 ? 0x90u : 0x80u) && second <= (first == 0xf4 ? 0x8fu : 0xbfu);
        return good && tail(2) && tail(3) ? 4 : 0;
    }
    return 0;
}

void append_escaped(std::string& out, char c) {
    static constexpr char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char* const at = c == '\0' ? nullptr : std::char_traits<char>::find(plain, sizeof plain - 1, c);
    if (at) {
        out += '\\';
        out += letters[at - plain];
    } else if ((unsigned char)(c) < 0x20) {
        out += fmt::format("\\u{:04x}", int(c));
    } else {
        out += c;
    }
}

}  // namespace

// Returns "; it is a Python pickle …" for a file that is not text.
static std::string kind_of(std::string_view text) {
    const std::string kind = file_kind(text);
    return kind.empty() || kind.starts_with("a JSON text") ? "" : "; it is " + kind;
}

void parse_json(std::string_view text, const std::string& where, JsonHandler& handler) {
    if (const std::size_t bad = first_invalid_utf8(text); bad < text.size())
        fail(ErrorKind::io, where, ": no valid UTF-8: byte ", int((unsigned char)(text[bad])), " at ", bad,
             kind_of(text));
    // The parser takes a null byte for the end of the text and skips a byte order mark, so both are refused
    // here.
    check(text.find('\0') == text.npos, ErrorKind::io, where, ": no valid JSON: a null byte at ",
          text.find('\0'), kind_of(text));
    check(!text.starts_with("\xef\xbb\xbf"), ErrorKind::io, where,
          ": no valid JSON: it begins with a byte order mark");
    Events events(where, handler);
    nlohmann::json::sax_parse(text.begin(), text.end(), &events);
}

const JsonValue* JsonValue::find(std::string_view key) const {
    for (const JsonMember& member : members)
        if (member.key == key) return &member.value;
    return nullptr;
}

JsonValue parse_json_tree(std::string_view text, const std::string& where, int max_values) {
    TreeBuilder builder(where, max_values);
    parse_json(text, where, builder);
    return std::move(builder.result);
}

std::size_t first_invalid_utf8(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        // Skips eight ASCII bytes at once.
        std::uint64_t eight = 0;
        if (text.size() - at >= sizeof eight) {
            std::memcpy(&eight, text.data() + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const std::size_t length = utf8_length(text.substr(at));
        if (length == 0) return at;
        at += length;
    }
    return at;
}

void append_quoted(std::string& out, std::string_view text) {
    out += '"';
    for (const char c : text) append_escaped(out, c);
    out += '"';
}

std::string shown(std::string_view text) {
    constexpr std::size_t limit = 120;
    std::string out;
    const bool cut = text.size() > limit;
    if (cut) {
        std::size_t end = limit;  // not inside a character
        while (end > 0 && ((unsigned char)(text[end]) & 0xc0u) == 0x80u) --end;
        text = text.substr(0, end);
    }
    std::string valid(text);
    for (std::size_t bad; (bad = first_invalid_utf8(valid)) < valid.size();) valid[bad] = '?';
    append_quoted(out, valid);
    for (char& c : out)
        if (c == '\x7f') c = '?';
    if (cut) out += "...";
    return out;
}

}  // namespace mezzo::io
