// Memory that the ranks of one machine map, and the barrier in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace mezzo::distributed {

// Two sets of a slot per rank. While the ranks read one set, they may fill the other.
class SharedSegment {
public:
    SharedSegment() = default;
    ~SharedSegment();
    SharedSegment(const SharedSegment&) = delete;
    SharedSegment& operator=(const SharedSegment&) = delete;

    // Makes memory for `ranks` ranks and maps it. Returns an address for open(), which lives until forget_address(); "" where the system
    // has no such memory, or for more than 256 ranks.
    std::string create(int ranks);
    // Maps what another process has made. False where it cannot be reached from here; the address tells it from what lies there in another
    // namespace of processes.
    bool open(const std::string& address, int ranks);
    void forget_address();

    std::size_t slot_bytes() const;
    char* slot(unsigned set, int rank) const;

    enum class Wait : std::uint8_t { all_came, too_long, broken };
    // Until every rank has called this as often as this one. `seconds` are to wait at most.
    Wait arrive(double seconds);
    // From any thread of any rank: who waits, and who comes later and would have to, gets `broken`, in all ranks.
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
