#include "distributed/shared_segment.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#if defined(__linux__)
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <new>
#include <random>
#endif

namespace mezzo::distributed {

// State of the barrier. New memory is zeros, which is its first state.
struct SharedSegment::Head {
    alignas(64) std::atomic<std::uint32_t> arrived;  // calls of arrive() by all ranks, modulo 2^32
    alignas(64) std::atomic<std::uint32_t> broken;
    std::uint64_t name;  // random
};

#if defined(__linux__)

namespace {

using Clock = std::chrono::steady_clock;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t page = 4096;
constexpr std::size_t most_slot_bytes = 512 << 10, most_bytes = 32 << 20;
constexpr int most_ranks = 256;  // with more ranks the slots would be too small to divide

std::size_t slot_bytes_for(int ranks) {
    return std::clamp(most_bytes / 2 / std::size_t(ranks) / page * page, page, most_slot_bytes);
}

// Waits while the value is `seen`, for at most a tenth of a second: break_up() may run between the check of
// the flag and the wait.
void wait_while(std::atomic<std::uint32_t>& value, std::uint32_t seen) {
    constexpr timespec longest{.tv_sec = 0, .tv_nsec = 100'000'000};
    syscall(SYS_futex, &value, FUTEX_WAIT, seen, &longest, nullptr, 0);
}
void wake_all(std::atomic<std::uint32_t>& value) {
    syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

SharedSegment::~SharedSegment() {
    forget_address();
    unmap();
}

void SharedSegment::unmap() {
    if (head_ != nullptr) munmap(head_, bytes_);
    head_ = nullptr;
}

// Anonymous memory with a descriptor: it is freed when the last process has ended, however it ends.
std::string SharedSegment::create(int ranks) {
    if (ranks > most_ranks) return {};
    descriptor_ = memfd_create("mezzo", MFD_CLOEXEC);
    const std::size_t bytes = page + 2 * std::size_t(ranks) * slot_bytes_for(ranks);
    // Allocated at once: later, a lack of memory would raise a signal.
    if (descriptor_ < 0 || posix_fallocate(descriptor_, 0, off_t(bytes)) != 0 || !map(descriptor_, ranks)) {
        forget_address();
        return {};
    }
    std::random_device source;
    head_->name = std::uint64_t(source()) << 32 | source();
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_) + "#" +
           std::to_string(head_->name);
}

bool SharedSegment::open(const std::string& address, int ranks) {
    const std::size_t end = address.find('#');
    const int descriptor = ::open(address.substr(0, end).c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor < 0) return false;
    bool mapped = map(descriptor, ranks);
    close(descriptor);
    if (mapped && address.substr(end + 1) != std::to_string(head_->name)) {
        unmap();
        mapped = false;
    }
    return mapped;
}

bool SharedSegment::map(int descriptor, int ranks) {
    const std::size_t bytes = page + 2 * std::size_t(ranks) * slot_bytes_for(ranks);
    struct stat file {};
    if (fstat(descriptor, &file) != 0 || std::size_t(file.st_size) != bytes) return false;
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return false;
    head_ = std::launder(static_cast<Head*>(memory));
    slots_ = static_cast<char*>(memory) + page;
    bytes_ = bytes;
    ranks_ = ranks;
    return true;
}

void SharedSegment::forget_address() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
}

std::size_t SharedSegment::slot_bytes() const { return slot_bytes_for(ranks_); }

char* SharedSegment::slot(unsigned set, int rank) const {
    return slots_ + (std::size_t(set) * std::size_t(ranks_) + std::size_t(rank)) * slot_bytes();
}

SharedSegment::Wait SharedSegment::arrive(double seconds) {
    expected_ += std::uint32_t(ranks_);
    if (head_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == expected_) {
        wake_all(head_->arrived);
        return Wait::all_came;
    }
    const Clock::time_point begin = Clock::now();
    for (;;) {
        const std::uint32_t seen = head_->arrived.load(std::memory_order_acquire);
        if (std::int32_t(seen - expected_) >= 0) return Wait::all_came;
        if (head_->broken.load() != 0) return Wait::broken;
        if (std::chrono::duration<double>(Clock::now() - begin).count() > seconds) return Wait::too_long;
        wait_while(head_->arrived, seen);
    }
}

void SharedSegment::break_up() noexcept {
    head_->broken.store(1);
    wake_all(head_->arrived);
}

#else  // no memory with a descriptor and no futex: ranks use sockets

SharedSegment::~SharedSegment() = default;
std::string SharedSegment::create(int) { return {}; }
bool SharedSegment::open(const std::string&, int) { return false; }
bool SharedSegment::map(int, int) { return false; }
void SharedSegment::unmap() {}
void SharedSegment::forget_address() {}
std::size_t SharedSegment::slot_bytes() const { return 0; }
char* SharedSegment::slot(unsigned, int) const { return nullptr; }
SharedSegment::Wait SharedSegment::arrive(double) { return Wait::broken; }
void SharedSegment::break_up() noexcept {}

#endif

}  // namespace mezzo::distributed
