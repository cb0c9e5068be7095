#include "distributed/device_engine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/system/log_line.h"
#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

constexpr std::size_t id_bytes = 128;

// The device of Group::device().
Device device_of(const RankInfo& place) {
    const int devices = cuda_device_count();
    return devices > 0 ? Device(DeviceType::cuda, place.local_rank % devices) : cpu_device;
}

void put(char* to, std::size_t capacity, const std::string& text) {
    std::memcpy(to, text.data(), std::min(text.size(), capacity - 1));
}

}  // namespace

// A rank's device library and device, in a fixed number of bytes.
struct DeviceEngine::Offer {
    bool wanted = false;    // NCCL was requested by name
    char library[32] = {};  // "" without one
    char device[16] = {};   // identifies the device
    char reason[220] = {};  // why there is no library
};

DeviceEngine::DeviceEngine(const RankInfo& place, const EngineTimes& times, Failed failed)
    : place_(place), times_(times), failed_(std::move(failed)), device_(device_of(place)) {
    if (place.size == 1 || device_.type() == DeviceType::cpu) return;
    const Backend* const found = backend(device_.type());
    if (found != nullptr && found->collectives != nullptr && !found->collectives->refused())
        library_ = found->collectives;
}

bool DeviceEngine::suits(Device device) const { return library_ != nullptr && device == device_; }

void DeviceEngine::note_elsewhere(Device device) const noexcept {
    if (library_ == nullptr || device.type() == DeviceType::cpu || device == device_ || noted_.exchange(true))
        return;
    char line[200];
    std::snprintf(
        line, sizeof line,
        "distributed: rank %d: tensors on cuda:%d travel through host memory; only those on cuda:%d, "
        "its Group::device(), travel between devices",
        place_.rank, device.index, device_.index);
    log_line(line);
}

std::unique_ptr<DevicePassage> DeviceEngine::make_passage() const {
    return library_->make_passage(device_.index);
}

DeviceEngine::Offer DeviceEngine::offer() const {
    Offer mine;
    mine.wanted = library_->wanted();
    try {
        put(mine.library, sizeof mine.library, library_->open());
        const std::string id = library_->device_id(device_.index);
        std::memcpy(mine.device, id.data(), std::min(id.size(), sizeof mine.device));
    } catch (const std::exception& error) {
        put(mine.reason, sizeof mine.reason, error.what());
    }
    return mine;
}

// Names two ranks that share a device, which NCCL refuses; "" if no two ranks do.
std::string DeviceEngine::shared_device(const std::vector<Offer>& all) {
    for (std::size_t b = 1; b < all.size(); ++b)
        for (std::size_t a = 0; a < b; ++a)
            if (std::memcmp(all[a].device, all[b].device, sizeof all[a].device) == 0)
                return "ranks " + std::to_string(a) + " and " + std::to_string(b) + " share a GPU";
    return "";
}

void DeviceEngine::stay_in_host_memory(const Collectives& host, const std::string& reason) const {
    if (place_.rank == 0)
        log_line("distributed: CUDA tensors travel through host memory, by " + std::string(host.name()) +
                 "; " + reason);
}

// Returns whether all ranks have a library, of one version, and a device of their own.
bool DeviceEngine::agree_on_library(Collectives& host) {
    const Offer mine = offer();
    std::vector<Offer> all(std::size_t(place_.size));
    host.all_gather(&mine, all.data(), sizeof mine);
    const bool wanted = std::any_of(all.begin(), all.end(), [](const Offer& o) { return o.wanted; });
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank].library[0] != 0) continue;
        const std::string reason = "rank " + std::to_string(rank) + ": " + all[rank].reason;
        check(!wanted, ErrorKind::backend, reason);
        stay_in_host_memory(host, reason);
        return false;
    }
    for (std::size_t rank = 1; rank < all.size(); ++rank)
        check(std::strcmp(all[0].library, all[rank].library) == 0, ErrorKind::backend, all[0].library,
              " on rank 0 and ", all[rank].library, " on rank ", rank,
              "; all ranks need the same version, or MEZZO_NCCL=off");
    if (const std::string shared = shared_device(all); !shared.empty()) {
        stay_in_host_memory(host, shared);
        return false;
    }
    const std::lock_guard lock(mutex_);
    name_ = mine.library;
    return true;
}

// Broadcasts the communicator's id from rank 0. An id of zeros means that rank 0 could not make one.
std::string DeviceEngine::share_id(Collectives& host) const {
    std::string id(id_bytes, '\0'), reason;
    if (place_.rank == 0) {
        try {
            id = library_->new_id();
        } catch (const std::exception& error) {
            reason = error.what();
        }
    }
    host.broadcast(id.data(), id_bytes, 0);
    if (id == std::string(id_bytes, '\0'))
        fail(ErrorKind::backend, reason.empty() ? "NCCL: rank 0 could not make an id" : reason);
    return id;
}

void DeviceEngine::connect_ranks(Collectives& host) {
    std::shared_ptr<DeviceCollectives> made = library_->connect({.device = device_.index,
                                                                 .rank = place_.rank,
                                                                 .size = place_.size,
                                                                 .id = share_id(host),
                                                                 .timeout = times_.timeout,
                                                                 .connect_timeout = times_.connect_timeout,
                                                                 .give_up = &aborted_,
                                                                 .failed = failed_});
    const std::lock_guard lock(mutex_);
    connected_ = std::move(made);
    if (aborted_) connected_->abort();
}

std::shared_ptr<DeviceCollectives> DeviceEngine::connect(Collectives& host) {
    if (!decided_) {
        if (agree_on_library(host)) {
            try {
                connect_ranks(host);
            } catch (const std::exception& error) {  // the other ranks wait for this one
                failed_(error.what(), false);
                throw;
            }
        }
        decided_ = true;
        const std::string engine = name();
        if (!engine.empty() && place_.rank == 0)
            log_line("distributed: CUDA tensors travel between devices, by " + engine);
    }
    return connected();
}

std::shared_ptr<DeviceCollectives> DeviceEngine::connected() const {
    const std::lock_guard lock(mutex_);
    return connected_;
}

std::string DeviceEngine::name() const {
    const std::lock_guard lock(mutex_);
    return connected_ != nullptr ? name_ : "";
}

void DeviceEngine::keep(const Tensors& memory) {
    const std::lock_guard lock(mutex_);
    kept_.insert(kept_.end(), memory.begin(), memory.end());
}

void DeviceEngine::finish() const noexcept {
    const std::shared_ptr<DeviceCollectives> engine = connected();
    if (engine != nullptr && engine->alive()) engine->finish();
}

void DeviceEngine::close() noexcept {
    std::shared_ptr<DeviceCollectives> ending;
    {
        const std::lock_guard lock(mutex_);
        ending = std::move(connected_);
    }
}

void DeviceEngine::forget() noexcept {
    auto* const never_ended = new (std::nothrow) std::shared_ptr<DeviceCollectives>;
    if (never_ended != nullptr) never_ended->swap(connected_);
}

void DeviceEngine::abort() noexcept {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (connected_ != nullptr) connected_->abort();
}

}  // namespace mezzo::distributed
