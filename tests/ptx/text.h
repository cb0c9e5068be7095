// Pieces of PTX text.
#pragma once

#include <string>
#include <vector>

namespace mezzo::ptx {

// Throws Fault("PTX: <what>: <text>").
[[noreturn]] void refuse(const std::string& what, const std::string& text);

bool is_name_character(char c);
std::string trimmed(const std::string& text);
// Splits at commas outside of brackets; the parts are trimmed.
std::vector<std::string> split_arguments(const std::string& text);
// Splits at each dot: "ld.global.f32" -> ld, global, f32.
std::vector<std::string> split_opcode(const std::string& opcode);
// "{%r1, %r2}" -> both; anything else is a vector of itself.
std::vector<std::string> vector_elements(const std::string& text);
// "s32" -> 4; "pred" -> 0.
int type_bytes(const std::string& type);

// ".align 8 .b8 name[208]" or ".u64 name".
struct Declaration {
    std::size_t alignment = 1, size = 0;
    std::string name, type;
};
Declaration read_declaration(const std::string& text);

inline std::size_t round_up(std::size_t n, std::size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

}  // namespace mezzo::ptx
