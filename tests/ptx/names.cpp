#include "tests/ptx/names.h"

#include <cctype>
#include <cstring>

#include "tests/ptx/text.h"

namespace mezzo::ptx {
namespace {

template <class Value>
const Value* find_in(const std::vector<std::map<std::string, Value>>& scopes, const std::string& name) {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope)
        if (const auto it = scope->find(name); it != scope->end()) return &it->second;
    return nullptr;
}

constexpr std::size_t predicate_bytes = 64;  // of a warp: 32 bits, and a cache line of their own

}  // namespace

Names::Names() {
    open_scope();
    for (const char* const name :
         {"%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%ntid.x", "%ntid.y", "%ntid.z",
          "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"})
        name_register(name, add_register(4));
}

void Names::open_scope() {
    registers_.emplace_back();
    variables_.emplace_back();
}

void Names::close_scope() {
    registers_.pop_back();
    variables_.pop_back();
}

Register Names::add_register(int bytes) {
    const Register made{std::int32_t(register_bytes_), bytes};
    register_bytes_ += bytes == 0 ? predicate_bytes : std::size_t(bytes) * warp_size;
    return made;
}

const Register* Names::find_register(const std::string& name) const { return find_in(registers_, name); }
const Variable* Names::find_variable(const std::string& name) const { return find_in(variables_, name); }

std::int32_t Names::constant(std::uint64_t value, int bytes) {
    const auto [it, is_new] =
        constants_.try_emplace({value, bytes}, -1 - std::int32_t(constant_bytes_.size()));
    if (!is_new) return it->second;
    const std::size_t at = constant_bytes_.size();
    if (bytes == 0) {
        constant_bytes_.resize(at + predicate_bytes);
        const std::uint32_t mask = value != 0 ? all_lanes : 0;
        std::memcpy(&constant_bytes_[at], &mask, sizeof mask);
        return it->second;
    }
    const auto size = static_cast<std::size_t>(bytes);
    constant_bytes_.resize(at + size * warp_size);
    for (std::size_t l = 0; l < warp_size; ++l) std::memcpy(&constant_bytes_[at + l * size], &value, size);
    return it->second;
}

void Names::lay_out(Kernel& kernel) {
    kernel.constants_offset = round_up(register_bytes_, predicate_bytes);
    kernel.constants = constant_bytes_;
    kernel.register_bytes = kernel.constants_offset + kernel.constants.size();
    for (Instruction& i : kernel.code)
        for (std::int32_t& offset : i.operands)
            if (offset < 0) offset = std::int32_t(kernel.constants_offset) + (-1 - offset);
}

bool read_number(const std::string& text, int bytes, std::uint64_t& value) {
    const std::string prefix = text.substr(0, 2);
    const bool is_float = (prefix == "0f" || prefix == "0F") && text.size() == 10;
    const bool is_double = (prefix == "0d" || prefix == "0D") && text.size() == 18;
    if (is_float || is_double) {
        if (bytes != (is_float ? 4 : 8)) refuse("floating constant of another size", text);
        value = std::stoull(text.substr(2), nullptr, 16);
        return true;
    }
    const bool negative = text[0] == '-';
    if (std::isdigit(static_cast<unsigned char>(text[negative ? 1 : 0])) == 0) return false;
    std::size_t used = 0;
    value = negative ? std::uint64_t(std::stoll(text, &used, 0)) : std::stoull(text, &used, 0);
    if (used < text.size() && text[used] == 'U') ++used;
    if (used != text.size()) refuse("number", text);
    return true;
}

}  // namespace mezzo::ptx
