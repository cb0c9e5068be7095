// The table of instructions by their full name. Loads, stores and control flow are decoded by decoder.cpp.
#pragma once

#include "tests/ptx/kernel.h"

namespace mezzo::ptx {

struct Opcode {
    Execute execute = nullptr;
    std::vector<std::uint8_t> bytes;  // of the operands, destination first; 0 is a predicate
    Flow flow = Flow::next;
    std::int8_t mask_operand = -1;
    Vote vote = Vote::none;
};
using Opcodes = std::map<std::string, Opcode>;

const Opcodes& opcodes();
// Null if there is no such access.
Execute load_or_store(bool store, Space space, int memory_bytes, bool is_signed, int register_bytes);

// The parts of the table, by source file.
void add_integer_opcodes(Opcodes& table);
void add_float_opcodes(Opcodes& table);
void add_conversion_opcodes(Opcodes& table);
void add_memory_opcodes(Opcodes& table);
void add_warp_opcodes(Opcodes& table);

}  // namespace mezzo::ptx
