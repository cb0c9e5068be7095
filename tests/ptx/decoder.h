// Decodes the text of one kernel.
#pragma once

#include "tests/ptx/names.h"
#include "tests/ptx/opcodes.h"

namespace mezzo::ptx {

class Decoder {
public:
    Decoder(Module& module, Kernel& kernel) : module_(module), kernel_(kernel) {}
    void decode(const FunctionText& function);

private:
    using Arguments = std::vector<std::string>;

    void add_parameters(const FunctionText& function);
    void add_globals();
    void read_body(std::size_t at);
    std::size_t read_statement(std::size_t at);
    void resolve_branches();

    void read_directive(const std::string& text);
    void add_registers(const std::string& text);
    void add_local(const std::string& text);
    void add_shared(const std::string& text);
    void read_pragma(const std::string& text);

    void read_instruction(const std::string& text);
    bool read_control_flow(Instruction& i, const std::string& opcode, const Arguments& arguments);
    void read_call(const std::string& text);
    void read_memory_access(Instruction& i, const std::string& opcode, const Arguments& arguments);
    void set_values(Instruction& i, const Arguments& values, bool store, const std::string& type,
                    Space space);
    void read_pair(Instruction& i, const std::string& opcode, const Arguments& arguments);
    void read_addressed(Instruction& i, const std::string& opcode, const Arguments& arguments);
    void read_copy(Instruction& i, const Arguments& arguments);
    void read_plain(Instruction& i, const std::string& opcode, const Arguments& arguments);
    std::string narrowed(const std::string& name, int bytes);

    std::int32_t source(const std::string& text, int bytes);
    std::int32_t destination(const std::string& text, int bytes);
    // "[base+4]" as operand `n`; gives the space of a variable, or Space::none if the base is a register.
    Space read_address(const std::string& text, Instruction& i, int n);
    const Variable* variable(const std::string& name);
    const Opcode& opcode_named(const std::string& name) const;

    Module& module_;
    Kernel& kernel_;
    Names names_;
    std::map<std::string, std::uint32_t> labels_;
    std::vector<std::pair<std::uint32_t, std::string>> branches_;
    std::string current_;   // instruction, for messages
    std::string instance_;  // prefix of the labels of a function that is expanded here; empty in the kernel
    int instances_ = 0;
    unsigned barriers_ = 0;
    std::uint32_t used_bytes_ = all_lanes;  // from the pragma before a load
};

}  // namespace mezzo::ptx
