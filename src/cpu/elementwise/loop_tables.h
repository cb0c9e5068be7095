// Tables of loops per instruction set, as the units that are compiled per set fill them (isa_unit.h). A table
// is a struct of nothing but function pointers. A unit may lack a loop, and its table is empty if the
// compiler lacks the instructions: then the next narrower set's loops are used.
#pragma once

#include <array>
#include <bit>
#include <cstddef>

#include "cpu/isa/isa.h"

namespace mezzo::cpu {

// `table`, and the entries that it lacks from `narrower`.
template <class Table> Table completed(const Table& table, const Table& narrower) {
    using Entries = std::array<void (*)(), sizeof(Table) / sizeof(void (*)())>;
    Entries entries = std::bit_cast<Entries>(table);
    const Entries rest = std::bit_cast<Entries>(narrower);
    for (std::size_t i = 0; i < entries.size(); ++i)
        if (!entries[i]) entries[i] = rest[i];
    return std::bit_cast<Table>(entries);
}

// The loops for a processor with these instructions.
template <class Table, const Table& portable, const Table& avx2, const Table& avx512>
const Table& loops_for(Isa isa) {
    static const Table narrow = completed(avx2, portable), wide = completed(avx512, narrow);
    return isa >= Isa::avx512 ? wide : isa >= Isa::avx2 ? narrow : portable;
}

}  // namespace mezzo::cpu
