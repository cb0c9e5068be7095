// Registers, variables and constants that a kernel's text names, by scope, and where they are.
#pragma once

#include "tests/ptx/kernel.h"

namespace mezzo::ptx {

struct Register {
    std::int32_t offset;
    int bytes;  // of a lane; 0: a predicate
};
struct Variable {
    Space space;
    std::uint64_t address;
};

class Names {
public:
    // The special registers come first, in the order in which Warp::start() writes them.
    Names();

    void open_scope();
    void close_scope();

    Register add_register(int bytes);
    void name_register(const std::string& name, Register reg) { registers_.back()[name] = reg; }
    const Register* find_register(const std::string& name) const;

    void add_variable(const std::string& name, Variable variable) { variables_.back()[name] = variable; }
    void add_kernel_variable(const std::string& name, Variable variable) {
        variables_.front()[name] = variable;
    }
    const Variable* find_variable(const std::string& name) const;

    // The offset of 32 equal lanes. It is negative until lay_out() has counted the registers.
    std::int32_t constant(std::uint64_t value, int bytes);
    // Puts constants behind the registers and sets the true offsets in the kernel.
    void lay_out(Kernel& kernel);

private:
    std::vector<std::map<std::string, Register>> registers_;
    std::vector<std::map<std::string, Variable>> variables_;
    std::map<std::pair<std::uint64_t, int>, std::int32_t> constants_;
    std::vector<char> constant_bytes_;
    std::size_t register_bytes_ = 0;
};

// Reads "12", "-3", "0x1F", "0f3F800000" or "0d..." of a type of `bytes`. False if the text is no number.
bool read_number(const std::string& text, int bytes, std::uint64_t& value);

}  // namespace mezzo::ptx
