#include "tests/ptx/device_memory.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "tests/ptx/machine.h"

namespace mezzo::ptx {
namespace {

constexpr std::size_t alignment = 512;

struct Memory {
    std::mutex mutex;
    std::map<std::uint64_t, Range> ranges;
    std::size_t bytes = 0;
};
// Never destroyed: the backend frees memory while the program ends.
Memory& memory() {
    static Memory& all = *new Memory;
    return all;
}

std::uint64_t address_of(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

// The marks of the bytes from `p` on, or null.
std::uint8_t* marks_of(const void* p) {
    const Range* const range = find_range(address_of(p));
    return range == nullptr ? nullptr : range->written.get() + (address_of(p) - range->begin);
}

}  // namespace

void* allocate(std::size_t bytes) {
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    if (all.bytes + bytes > options.device_memory) return nullptr;
    void* const made = std::aligned_alloc(alignment, (bytes + 2 * alignment - 1) / alignment * alignment);
    if (made == nullptr) return nullptr;
    std::memset(made, 0xFF, bytes);
    const std::uint64_t at = address_of(made);
    all.ranges[at] = {at, at + bytes, std::make_unique<std::uint8_t[]>(bytes + 1)};
    all.bytes += bytes;
    return made;
}

bool release(void* p) {
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    const auto it = all.ranges.find(address_of(p));
    if (it == all.ranges.end()) return false;
    all.bytes -= it->second.end - it->second.begin;
    all.ranges.erase(it);
    std::free(p);
    return true;
}

const Range* find_range(std::uint64_t address) {
    Memory& all = memory();
    const std::lock_guard lock(all.mutex);
    const auto after = all.ranges.upper_bound(address);
    if (after == all.ranges.begin()) return nullptr;
    const Range& range = std::prev(after)->second;
    return address < range.end ? &range : nullptr;
}

bool is_device_memory(const void* p, std::size_t bytes) {
    const Range* const range = find_range(address_of(p));
    return range != nullptr && address_of(p) + bytes <= range->end;
}

void mark_written(const void* to, std::size_t bytes) {
    if (std::uint8_t* const marks = marks_of(to)) std::memset(marks, 1, bytes);
}

void copy_marks(const void* to, const void* from, std::size_t bytes) {
    std::uint8_t *const target = marks_of(to), *const source = marks_of(from);
    if (target != nullptr && source != nullptr) std::memmove(target, source, bytes);
}

}  // namespace mezzo::ptx
