#include "tests/ptx/text.h"

#include <algorithm>
#include <cctype>

#include "tests/ptx/kernel.h"

namespace mezzo::ptx {

void refuse(const std::string& what, const std::string& text) { throw Fault("PTX: " + what + ": " + text); }

bool is_name_character(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
}

std::string trimmed(const std::string& text) {
    const auto begin = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
    return begin == std::string::npos ? "" : text.substr(begin, last - begin + 1);
}

std::vector<std::string> split_arguments(const std::string& text) {
    std::vector<std::string> parts;
    std::string part;
    int depth = 0;
    for (const char c : text) {
        if (c == '{' || c == '[' || c == '(') ++depth;
        if (c == '}' || c == ']' || c == ')') --depth;
        if (c == ',' && depth == 0) {
            parts.push_back(trimmed(part));
            part.clear();
        } else {
            part += c;
        }
    }
    if (!trimmed(part).empty() || !parts.empty()) parts.push_back(trimmed(part));
    return parts;
}

std::vector<std::string> split_opcode(const std::string& opcode) {
    std::vector<std::string> parts;
    for (std::size_t at = 0;;) {
        const auto dot = opcode.find('.', at);
        parts.push_back(opcode.substr(at, dot - at));
        if (dot == std::string::npos) return parts;
        at = dot + 1;
    }
}

std::vector<std::string> vector_elements(const std::string& text) {
    if (text.empty() || text.front() != '{') return {text};
    return split_arguments(text.substr(1, text.size() - 2));
}

int type_bytes(const std::string& type) {
    if (type == "pred") return 0;
    const auto digits = type.find_first_of("0123456789");
    if (digits == std::string::npos) refuse("unknown type", type);
    return std::stoi(type.substr(digits)) / 8;
}

Declaration read_declaration(const std::string& text) {
    static const std::vector<std::string> spaces = {"param", "shared", "local", "extern", "global", "reg"};
    Declaration d;
    std::string rest = trimmed(text);
    while (!rest.empty() && rest[0] == '.') {
        const auto end = rest.find_first_of(" \t");
        if (end == std::string::npos) refuse("declaration", text);
        const std::string word = rest.substr(1, end - 1);
        rest = trimmed(rest.substr(end));
        if (word == "align") {
            d.alignment = std::stoul(rest);
            rest = trimmed(rest.substr(rest.find_first_of(" \t")));
        } else if (std::find(spaces.begin(), spaces.end(), word) == spaces.end()) {
            d.type = word;
        }
    }
    if (d.type.empty()) refuse("declaration", text);
    const auto bytes = static_cast<std::size_t>(type_bytes(d.type));
    const auto bracket = rest.find('[');
    d.name = trimmed(rest.substr(0, bracket));
    std::size_t count = 1;
    if (bracket != std::string::npos)
        count = rest[bracket + 1] == ']' ? 0 : std::stoul(rest.substr(bracket + 1));
    d.size = count * bytes;
    d.alignment = std::max(d.alignment, bytes);
    return d;
}

}  // namespace mezzo::ptx
