// Decoded PTX. A Module is the PTX of one .cu file; it decodes a kernel when that is first asked for. Device
// functions are expanded at their calls. An instruction, a state space or a form of operand that is not known
// is a Fault: nothing is guessed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mezzo::ptx {

// An error of a kernel that ends it.
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr unsigned warp_size = 32;
constexpr std::uint32_t all_lanes = ~0u;
// Kernels address dynamic shared memory from here on.
constexpr std::uint64_t dynamic_shared_base = std::uint64_t(1) << 24;

struct Instruction;
struct Warp;
struct Range;
// Executes an instruction for the lanes in `mask`.
using Execute = void (*)(Warp& warp, const Instruction& instruction, std::uint32_t mask);

enum class Flow : std::uint8_t { next, branch, leave, warp_sync, block_sync };
enum class Space : std::uint8_t { none, global, shared, local, param };
enum class Vote : std::uint8_t { none, count, any, all };  // of bar.red

struct Instruction {
    Execute execute = nullptr;
    Flow flow = Flow::next;
    Vote vote = Vote::none;
    bool negated_guard = false;
    bool wide_address = true, wide_second_address = true;
    bool aligned = false;                       // .aligned: every lane of the warp takes part
    std::uint8_t vector = 1;                    // elements of a load or store
    std::int8_t mask_operand = -1;              // of warp calls that name their lanes
    std::int32_t guard = -1;                    // offset of the predicate
    std::int32_t operands[16] = {};             // offsets in the register file
    std::int64_t immediate = 0;                 // displacement of an address, or a group count
    std::uint32_t target = 0;                   // of a branch
    std::uint32_t used_bytes = all_lanes;       // of a vector load, as used_bytes_mask says
    mutable std::uint64_t executions = 0;       // by warps
    mutable const Range* last_range = nullptr;  // the allocation of the last access
    std::string text;
};

struct Extent {
    std::size_t offset, size;
};

struct Kernel {
    std::string name;
    std::vector<Instruction> code;
    std::size_t register_bytes = 0;  // of a warp, constants included
    std::size_t constants_offset = 0;
    std::vector<char> constants;  // each as 32 equal lanes
    std::vector<Extent> parameters;
    std::size_t parameter_bytes = 0;
    std::vector<Extent> shared;       // variables, with a gap behind each
    std::size_t shared_bytes = 0;     // of that layout
    std::size_t declared_shared = 0;  // as a GPU lays it out, without gaps
    std::size_t dynamic_offset = 0;
    std::size_t local_bytes = 0;  // of a lane
    unsigned max_threads = 0;     // .maxntid; 0 if there is none
    unsigned race_granule = 4;    // bytes; the narrowest access to shared memory
    mutable std::uint64_t launches = 0;
};

// Offsets of a function in the text of its module.
struct FunctionText {
    std::size_t head, body;
};
// A variable in device memory, allocated with the first kernel.
struct GlobalVariable {
    std::vector<char> initial;
    void* memory = nullptr;
};

class Module {
public:
    explicit Module(std::string text);
    const Kernel& kernel(const std::string& name);
    std::vector<std::string> names() const;
    // The kernels that have been decoded.
    const std::map<std::string, std::unique_ptr<Kernel>>& decoded() const { return kernels_; }

private:
    friend class Decoder;
    void add_global(const std::string& statement);
    void add_function(std::size_t first, bool entry);

    std::string text_;
    std::map<std::string, FunctionText> entries_, functions_;
    std::map<std::string, GlobalVariable> globals_;
    std::map<std::string, std::string> shared_;  // declarations outside of functions
    std::string dynamic_shared_;
    std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace mezzo::ptx
