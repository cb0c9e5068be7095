// Checks of accesses to device memory and shared memory.
#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "tests/ptx/device_memory.h"
#include "tests/ptx/warp.h"

namespace mezzo::ptx {
namespace {

// Accessor of shared memory: a thread's number, `several_lanes` with the number of their warp, or one of
// these.
constexpr std::uint16_t nobody = 0xFFFF, several_warps = 0xFFFE, several_lanes = 0x8000;

unsigned warp_of(std::uint16_t who) { return (who & several_lanes) != 0 ? who & 0xFFFu : who / warp_size; }

std::string name_of(std::uint16_t who) {
    if (who == several_warps) return "threads of several warps";
    return (who & several_lanes) != 0 ? fmt::format("threads of warp {}", who & 0xFFF)
                                      : fmt::format("thread {}", who);
}

void check_written(Warp& w, const Instruction& i, const Access& a, const Range& range) {
    std::uint8_t* const marks = range.written.get() + (a.address - range.begin);
    for (unsigned k = 0; k < a.bytes; ++k) {
        if ((a.used >> k & 1) == 0) continue;
        if (a.write)
            marks[k] = 1;
        else if (marks[k] == 0)
            report(*w.kernel, &i, "read of device memory that nothing has written",
                   fmt::format("byte {} of {}, {}", a.address + k - range.begin, range.end - range.begin,
                               position(w, a.lane)));
    }
}

// Finds the allocation of the bytes that are used. A vector load of which nvcc uses a part may reach beyond
// it.
const Range& range_of(Warp& w, const Instruction& i, const Access& a) {
    const unsigned first = unsigned(std::countr_zero(a.used)),
                   end = std::min(a.bytes, 32u - unsigned(std::countl_zero(a.used)));
    const Range* range = i.last_range;
    if (range != nullptr && a.address + first >= range->begin && a.address + end <= range->end) return *range;
    range = find_range(a.address + first);
    if (range == nullptr)
        fault(w, i, a.lane, fmt::format("global address {:#x} is in no allocation", a.address));
    if (a.address + end > range->end)
        fault(w, i, a.lane,
              fmt::format("{} bytes at offset {} of an allocation of {}", a.bytes, a.address - range->begin,
                          range->end - range->begin));
    if (a.address >= range->begin && a.address + a.bytes <= range->end)
        i.last_range = range;
    else
        report(*w.kernel, &i, "unused bytes of a load lie outside of the allocation", position(w, a.lane));
    return *range;
}

void check_variables(Warp& w, const Instruction& i, const Access& a, std::uint64_t offset) {
    for (unsigned k = 0; k < a.bytes; ++k) {
        if ((a.used >> k & 1) == 0) continue;
        SharedByte& state = w.block->state[offset + k];
        if (state == SharedByte::gap)
            fault(w, i, a.lane, fmt::format("outside a shared variable, byte {}", offset + k));
        if (a.write)
            state = SharedByte::written;
        else if (state == SharedByte::unwritten)
            report(*w.kernel, &i, "read of shared memory that nothing has written",
                   fmt::format("byte {}, {}", offset + k, position(w, a.lane)));
    }
}

class RaceCheck {
public:
    RaceCheck(Warp& w, const Instruction& i, const Access& a)
        : w_(w), i_(i), a_(a), own_(std::uint16_t(w.index * warp_size + a.lane)) {}

    void look(std::size_t granule, unsigned bytes) {
        AccessRecord& record = w_.block->records[granule];
        if (!is_ordered(record.write_epoch, record.write_warp_epoch, record.writer))
            report_race(a_.write ? "race: two writes" : "race: read after write", granule * bytes,
                        record.writer);
        if (!a_.write) return add_reader(record);
        if (!is_ordered(record.read_epoch, record.read_warp_epoch, record.reader))
            report_race("race: write after read", granule * bytes, record.reader);
        record.write_epoch = w_.block->epoch;
        record.write_warp_epoch = w_.epoch;
        record.writer = own_;
    }

private:
    bool is_ordered(std::uint32_t epoch, std::uint16_t warp_epoch, std::uint16_t who) const {
        if (who == nobody || epoch != w_.block->epoch || who == own_) return true;
        return who != several_warps && warp_of(who) == w_.index && warp_epoch != w_.epoch;
    }
    void add_reader(AccessRecord& record) const {
        if (record.read_epoch != w_.block->epoch || record.reader == nobody) {
            record.read_epoch = w_.block->epoch;
            record.reader = own_;
        } else if (record.reader != own_ && record.reader != several_warps) {
            if (warp_of(record.reader) != w_.index)
                record.reader = several_warps;
            else
                record.reader =
                    record.read_warp_epoch == w_.epoch ? std::uint16_t(several_lanes | w_.index) : own_;
        }
        record.read_warp_epoch = w_.epoch;
    }
    void report_race(const char* kind, std::size_t byte, std::uint16_t other) const {
        report(*w_.kernel, &i_, kind,
               fmt::format("shared byte {}, {}; other: {}", byte, position(w_, a_.lane), name_of(other)));
    }

    Warp& w_;
    const Instruction& i_;
    const Access& a_;
    std::uint16_t own_;
};

}  // namespace

char* global_bytes(Warp& w, const Instruction& i, const Access& a) {
    if (a.address % a.bytes != 0)
        fault(w, i, a.lane, fmt::format("misaligned global address, {} bytes", a.bytes));
    check_written(w, i, a, range_of(w, i, a));
    return reinterpret_cast<char*>(a.address);
}

char* shared_bytes(Warp& w, const Instruction& i, const Access& a) {
    if (a.address % a.bytes != 0) fault(w, i, a.lane, fmt::format("misaligned shared address {}", a.address));
    const bool dynamic = a.address >= dynamic_shared_base;
    const std::uint64_t offset =
        dynamic ? a.address - dynamic_shared_base + w.kernel->dynamic_offset : a.address;
    if (offset + a.bytes > w.block->state.size()) fault(w, i, a.lane, "outside shared memory");
    check_variables(w, i, a, offset);
    RaceCheck races(w, i, a);
    const unsigned granule = w.kernel->race_granule;
    for (std::size_t g = offset / granule; g < (offset + a.bytes + granule - 1) / granule; ++g)
        if ((a.used >> (g * granule - offset) & 1) != 0) races.look(g, granule);
    return w.block->shared.data() + offset;
}

}  // namespace mezzo::ptx
