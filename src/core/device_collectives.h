// Interface of a backend's collective operations on device memory (NCCL for CUDA). A backend need not have
// them: groups of processes then use the engine for host memory. Backends know nothing of groups;
// src/distributed connects the ranks and passes the tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "mezzo/device.h"
#include "mezzo/dtype.h"

namespace mezzo {

enum class DeviceReduction : std::uint8_t { sum, mean, min, max };

// Communicator of one rank. Operations are queued on the device's communication stream, and the host waits
// for none of them. All ranks queue the same operations in the same order, each from one thread at a time.
// Throws Error(backend) if the library refuses an operation, or after abort().
class DeviceCollectives {
public:
    virtual ~DeviceCollectives() = default;

    // For uint8, int64, float32 and float64; the mean for floating dtypes only.
    virtual void all_reduce(void* data, std::int64_t count, Dtype dtype, DeviceReduction op) = 0;
    // Gathers `bytes` bytes of each rank; `all` has room for those of all ranks.
    virtual void all_gather(const void* mine, void* all, std::size_t bytes) = 0;
    virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
    // Replaces the elements by their means over the ranks, added in float32 in the order of the ranks and
    // rounded once. `count` is a multiple of the number of ranks. If `wire` is a 16-bit dtype, float32
    // elements are multiplied by 1 / ranks before they are rounded to it. `scratch` has
    // ordered_mean_scratch() bytes.
    virtual void ordered_mean(void* data, std::int64_t count, Dtype dtype, Dtype wire, void* scratch) = 0;

    // Applies the timeout to the work that is queued on the compute stream now, because it contains
    // collective operations of a graph.
    virtual void watch_compute() = 0;

    // Makes the host wait for all work of the device, unless it cannot wait, such as in a capture.
    virtual void finish() noexcept = 0;
    // Aborts from any thread, without waiting: queued operations end soon, with any values, and all later
    // operations throw.
    virtual void abort() noexcept = 0;
    virtual bool alive() const = 0;
};

inline std::size_t ordered_mean_scratch(std::int64_t count, int ranks, Dtype wire) {
    return (2 * std::size_t(count) + std::size_t(count / ranks)) * size_of(wire);
}

// Stream hand-off of some memory: from the compute stream to the communication stream and back, by events. In
// a captured step all four calls become part of its graph.
class DevicePassage {
public:
    virtual ~DevicePassage() = default;
    virtual void ready() = 0;    // records what is queued on the compute stream now
    virtual void begin() = 0;    // the communication stream waits for ready()
    virtual void end() = 0;      // records what is queued on the communication stream now
    virtual void receive() = 0;  // the compute stream waits for end()
};

struct DeviceCollectivesOptions {
    int device = 0;
    int rank = 0, size = 1;
    std::string id;         // of new_id() on one of the ranks
    double timeout = 1800;  // s, until an operation that other ranks do not join is aborted
    double connect_timeout = 300;
    // May be set from any thread, to cancel connect().
    const std::atomic<bool>* give_up = nullptr;
    // Called once, on a thread of the engine, when an operation has failed or timed out, with the error
    // message.
    std::function<void(const std::string& words, bool timed_out)> failed = nullptr;
};

// Entry points of a backend's collectives library.
struct DeviceCollectivesLibrary {
    // Opens the library if it is not open yet. Returns its name and version, equal for versions that work
    // together, such as "NCCL 2.28.9". Throws Error(backend) with the reason if it cannot be used.
    std::string (*open)();
    bool (*refused)();                     // the user does not want it
    bool (*wanted)();                      // the user has named one: it must not be replaced silently
    std::string (*device_id)(int device);  // of at most 16 bytes, different for any two devices
    std::string (*new_id)();
    // Returns when all ranks have connected. Throws Error(backend).
    std::shared_ptr<DeviceCollectives> (*connect)(const DeviceCollectivesOptions& options);
    std::unique_ptr<DevicePassage> (*make_passage)(int device);
};

}  // namespace mezzo
