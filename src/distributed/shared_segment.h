// Memory that the ranks of one machine map, with a barrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mezzo::distributed {

// Two sets of slots, one slot per rank. While the ranks read one set, they may fill the other.
class SharedSegment {
public:
    SharedSegment() = default;
    ~SharedSegment();
    SharedSegment(const SharedSegment&) = delete;
    SharedSegment& operator=(const SharedSegment&) = delete;

    // Creates and maps memory for `ranks` ranks. Returns an address for open(), valid until forget_address();
    // "" if the system has no such memory, or for more than 256 ranks.
    std::string create(int ranks);
    // Maps the memory that another process has created. Returns false if it cannot be reached from here. The
    // address holds a random name, which distinguishes it from other memory at the same path in another PID
    // namespace.
    bool open(const std::string& address, int ranks);
    void forget_address();

    std::size_t slot_bytes() const;
    char* slot(unsigned set, int rank) const;

    enum class Wait : std::uint8_t { all_came, too_long, broken };
    // Barrier: waits, for at most `seconds`, until every rank has called this as often as this one.
    Wait arrive(double seconds);
    // Makes arrive() return `broken` in all ranks wherever it waits or would wait. May be called from any
    // thread of any rank.
    void break_up() noexcept;

private:
    struct Head;
    bool map(int descriptor, int ranks);
    void unmap();
    Head* head_ = nullptr;
    char* slots_ = nullptr;
    std::size_t bytes_ = 0;
    int ranks_ = 0, descriptor_ = -1;
    std::uint32_t expected_ = 0;
};

}  // namespace mezzo::distributed
