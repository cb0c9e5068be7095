// Replacements by the table in SentencePiece's models (builder.cc of SentencePiece: "precompiled_charsmap").
// The table is the size of a double-array trie in bytes (4 bytes, little-endian), the trie in the format of
// Darts-clone (4 bytes per unit), and the replacements, each of which ends with a byte 0. A key's value is
// the offset of its replacement.

#include "text/tokenizer/normalizer.h"

namespace mezzo::data::tokenizer {

namespace {

// Decodes base64 (RFC 4648, section 4); throws Error(value) for other text.
std::string from_base64(std::string_view text, const std::string& where) {
    const auto digit = [](char c) {
        if (c >= 'A' && c <= 'Z') return c - 'A';
        if (c >= 'a' && c <= 'z') return c - 'a' + 26;
        if (c >= '0' && c <= '9') return c - '0' + 52;
        return c == '+' ? 62 : c == '/' ? 63 : -1;
    };
    while (text.ends_with('=')) text.remove_suffix(1);
    std::string bytes;
    std::uint32_t bits = 0;
    int count = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const int value = digit(text[i]);
        check(value >= 0, ErrorKind::value, where, ": precompiled_charsmap is no base64 at byte ", i);
        bits = bits << 6 | std::uint32_t(value);
        count += 6;
        if (count < 8) continue;
        count -= 8;
        bytes += char(bits >> count & 0xFF);
    }
    return bytes;
}

std::uint32_t unit_at(std::string_view bytes, std::size_t at) {
    std::uint32_t unit = 0;
    for (int i = 3; i >= 0; --i) unit = unit << 8 | static_cast<unsigned char>(bytes[at + std::size_t(i)]);
    return unit;
}

class Precompiled {
public:
    Precompiled(std::vector<std::uint32_t> units, std::string replacements)
        : units_(std::move(units)), replacements_(std::move(replacements)) {}

    // Looks up graphemes of up to 5 bytes as a whole, then characters; both by their shortest prefix in the
    // table. The reference does the same, and models were made with it.
    void operator()(Text& text) const {
        Text result;
        result.reserve(text.size());
        const std::string_view bytes = text.bytes();
        for (std::size_t at = 0; at < bytes.size();) {
            const std::size_t end = at + grapheme_end(bytes.substr(at));
            std::string_view content;
            if (end - at < 6 && find(bytes.substr(at, end - at), content)) {
                check_growth(text, result.size() + content.size());
                result.append(content, text.place({at, end}));
                at = end;
            }
            while (at < end) {
                const std::size_t next = at + first_character(bytes.substr(at)).bytes;
                if (find(bytes.substr(at, next - at), content)) {
                    check_growth(text, result.size() + content.size());
                    result.append(content, text.place({at, next}));
                } else {
                    result.append(text, {at, next});
                }
                at = next;
            }
        }
        text = std::move(result);
    }

private:
    // Fields of a unit: offset of its children, the byte that leads to it, and whether a key ends here.
    static std::size_t offset(std::uint32_t unit) { return std::size_t(unit >> 10) << ((unit & 0x200) >> 6); }
    static std::uint32_t label(std::uint32_t unit) { return unit & 0x800000FF; }
    static bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) == 1; }

    bool find(std::string_view key, std::string_view& content) const {
        std::size_t node = offset(units_[0]);
        for (const char c : key) {
            const auto byte = static_cast<unsigned char>(c);
            node ^= byte;
            if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) return false;
            const std::uint32_t unit = units_[node];
            node ^= offset(unit);
            if (!has_leaf(unit)) continue;
            const std::size_t at = node < units_.size() ? units_[node] & 0x7FFFFFFF : replacements_.size();
            if (at >= replacements_.size() || is_inside_character(at)) return false;
            content = replacements_.c_str() + at;
            return true;
        }
        return false;
    }

    bool is_inside_character(std::size_t at) const {
        return (static_cast<unsigned char>(replacements_[at]) & 0xC0) == 0x80;
    }

    std::vector<std::uint32_t> units_;
    std::string replacements_;
};

}  // namespace

Normalizer read_precompiled(Fields& fields) {
    const std::string bytes = from_base64(fields.text("precompiled_charsmap"), fields.where());
    check(bytes.size() >= 4, ErrorKind::value, fields.where(), ": precompiled_charsmap has ", bytes.size(),
          " bytes; 4 at least are expected");
    const std::size_t size = unit_at(bytes, 0);
    check(size >= 4 && size % 4 == 0 && size <= bytes.size() - 4, ErrorKind::value, fields.where(),
          ": precompiled_charsmap has ", bytes.size(), " bytes, of which the trie takes ", size);
    std::vector<std::uint32_t> units(size / 4);
    for (std::size_t i = 0; i < units.size(); ++i) units[i] = unit_at(bytes, 4 + 4 * i);
    std::string replacements = bytes.substr(4 + size);
    check(is_valid_utf8(replacements), ErrorKind::value, fields.where(),
          ": the replacements of precompiled_charsmap are no valid UTF-8");
    return Precompiled(std::move(units), std::move(replacements));
}

}  // namespace mezzo::data::tokenizer
