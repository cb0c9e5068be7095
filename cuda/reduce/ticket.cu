#include "cuda/reduce/ticket.cuh"

#include <atomic>
#include <mutex>

namespace mezzo::cuda {
namespace {

constexpr int kept = 4096, devices = 64;

// Tickets of the current device, made at the first use.
unsigned* kept_tickets() {
    static std::atomic<unsigned*> made[devices];
    static std::mutex mutex;
    const int device = current_device();
    check(device < devices, ErrorKind::device, "cuda: device ", device, " is beyond the ", devices,
          " that are supported");
    std::atomic<unsigned*>& tickets = made[device];
    if (unsigned* const found = tickets.load(std::memory_order_acquire)) return found;
    const std::lock_guard lock(mutex);
    if (tickets.load() == nullptr) {
        auto* const fresh = static_cast<unsigned*>(device_malloc(kept * sizeof(unsigned)));
        check(fresh != nullptr, ErrorKind::memory, "cuda: no memory for the tickets of blocks");
        try {
            fill_zero(fresh, kept * sizeof(unsigned));
        } catch (...) {
            device_free(fresh);
            throw;
        }
        tickets.store(fresh, std::memory_order_release);
    }
    return tickets.load();
}

}  // namespace

Tickets::Tickets(int count) {
    if (count <= kept) {
        tickets_ = kept_tickets();
        return;
    }
    const auto bytes = std::int64_t(count) * std::int64_t(sizeof(unsigned));
    own_.emplace(Device(DeviceType::cuda, current_device()), bytes);
    tickets_ = own_->as<unsigned>();
    fill_zero(tickets_, static_cast<std::size_t>(bytes));
}

}  // namespace mezzo::cuda
