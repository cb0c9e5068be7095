// State of a warp and of a block that instructions work on.
#pragma once

#include "tests/ptx/machine.h"

namespace mezzo::ptx {

// Last accesses to some bytes of shared memory, for the race detector. Epochs count bar.sync and, for a warp,
// bar.warp.sync.
struct AccessRecord {
    std::uint32_t write_epoch = 0, read_epoch = 0;
    std::uint16_t write_warp_epoch = 0, writer = 0xFFFF, read_warp_epoch = 0, reader = 0xFFFF;
};

// One cp.async.
struct PendingCopy {
    std::uint32_t to;
    std::uint64_t from;
    unsigned bytes;
};

enum class SharedByte : std::uint8_t { gap, unwritten, written };

struct Block {
    Dim index, grid, shape;
    const std::vector<char>* parameters = nullptr;
    std::vector<char> shared;
    std::vector<SharedByte> state;
    std::vector<AccessRecord> records;
    std::uint32_t epoch = 1;
};

struct Warp {
    // Prepares the warp for a block.
    void start(Block& of);
    // Runs until all lanes have returned or wait at a barrier of the block, or for `budget` instructions.
    void run(std::uint64_t budget);
    // The 32 lanes of a register.
    template <class T> T* reg(std::int32_t offset) { return reinterpret_cast<T*>(registers.data() + offset); }
    // The 32 bits of a predicate.
    std::uint32_t& predicate(std::int32_t offset) { return *reg<std::uint32_t>(offset); }

    const Kernel* kernel = nullptr;
    Block* block = nullptr;
    std::vector<char> registers, local;
    unsigned index = 0;
    std::uint32_t exist = 0;    // lanes that the block has
    std::uint32_t live = 0;     // lanes that have not returned
    std::uint32_t blocked = 0;  // lanes that wait for others of the warp
    std::uint32_t carry = 0;    // the flag of add.cc and others
    std::uint32_t counters[warp_size] = {};
    bool at_barrier = false;
    std::uint16_t epoch = 0;
    std::vector<std::vector<PendingCopy>> copies[warp_size];  // by group; the last group is open

private:
    struct Group {  // lanes at the same instruction
        std::uint32_t lanes, counter;
        std::uint32_t next;  // where others wait further on
        bool alone;
    };
    Group furthest_behind() const;
    void set_counters(const Group& group);
    bool step(Group& group);
    bool branch(Group& group, const Instruction& i, std::uint32_t mask);
    void leave(Group& group, const Instruction& i, std::uint32_t mask);
    bool synchronize(Group& group, const Instruction& i, std::uint32_t mask);
    std::uint32_t members(const Instruction& i, std::uint32_t active);
    [[noreturn]] void report_deadlock();
};

[[noreturn]] void fault(const Warp& w, const Instruction& i, unsigned lane, const std::string& what);
// "block (x,y,z) of (x,y,z), thread n of m".
std::string position(const Warp& w, unsigned lane);

// An access of a lane.
struct Access {
    unsigned lane;
    std::uint64_t address;
    unsigned bytes;
    bool write;
    std::uint32_t used = all_lanes;  // which of the bytes
};
// The bytes on the host, after all checks.
char* global_bytes(Warp& w, const Instruction& i, const Access& access);
char* shared_bytes(Warp& w, const Instruction& i, const Access& access);

}  // namespace mezzo::ptx
