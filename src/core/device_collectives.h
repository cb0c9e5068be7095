// Collective operations on the memory of devices: what a backend may offer to groups of processes beside the engine for host memory. Backends know
// nothing of groups; src/distributed connects the ranks and brings the tensors.
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

// Of one rank. Operations are queued on the device's communication stream, and the host waits for none of them. All ranks queue the same operations in
// the same order, each from one thread at a time. Error(backend) where the library refuses one, or after abort().
class DeviceCollectives {
public:
    virtual ~DeviceCollectives() = default;

    // uint8, int64, float32 and float64, the mean of the floating ones only.
    virtual void all_reduce(void* data, std::int64_t count, Dtype dtype, DeviceReduction op) = 0;
    // `bytes` are those of one rank; `all` holds one piece per rank.
    virtual void all_gather(const void* mine, void* all, std::size_t bytes) = 0;
    virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
    // Replaces the elements, a multiple of the number of ranks, by their means, added in float32 in the order of the ranks and rounded once.
    // float32 elements on a 16-bit wire are multiplied by 1 / ranks before they are rounded for it. `scratch` has ordered_mean_scratch() bytes.
    virtual void ordered_mean(void* data, std::int64_t count, Dtype dtype, Dtype wire, void* scratch) = 0;

    // What the compute stream holds now has operations in it, those of a graph: they are to come to an end within the timeout, too.
    virtual void watch_compute() = 0;

    // The host waits for all that the device has to do, unless that cannot be waited for, such as in a capture.
    virtual void finish() noexcept = 0;
    // From any thread: what is queued ends soon, with any values, and all later operations throw. Does not wait.
    virtual void abort() noexcept = 0;
    virtual bool alive() const = 0;
};

inline std::size_t ordered_mean_scratch(std::int64_t count, int ranks, Dtype wire) {
    return (2 * std::size_t(count) + std::size_t(count / ranks)) * size_of(wire);
}

// The way of some memory from the stream of the device's other work to the communication stream and back. In a captured step all four calls become
// part of its graph.
class DevicePassage {
public:
    virtual ~DevicePassage() = default;
    virtual void ready() = 0;    // what the compute stream holds now comes before begin()
    virtual void begin() = 0;    // the communication stream waits for that
    virtual void end() = 0;      // what the communication stream holds now comes before receive()
    virtual void receive() = 0;  // the compute stream waits for that
};

struct DeviceCollectivesOptions {
    int device = 0;
    int rank = 0, size = 1;
    std::string id;         // of new_id() on one of the ranks
    double timeout = 1800;  // s, until an operation that other ranks do not come to is given up
    double connect_timeout = 300;
    // Set from any thread, it ends the connecting.
    const std::atomic<bool>* give_up = nullptr;
    // Is called once, on a thread of the engine, when an operation has failed or waited too long: the words, and whether it was the time.
    std::function<void(const std::string& words, bool timed_out)> failed = nullptr;
};

// What a backend has of them.
struct DeviceCollectivesLibrary {
    // Opens the library if it is not open yet. Its name and version, equal for versions that work together, such as "NCCL 2.28.9"; Error(backend)
    // with the reason if it cannot be used.
    std::string (*open)();
    bool (*refused)();                     // the user does not want it
    bool (*wanted)();                      // the user has named one: it must not be replaced in silence
    std::string (*device_id)(int device);  // of at most 16 bytes, different for any two devices
    std::string (*new_id)();
    // Returns when all ranks have connected; Error(backend).
    std::shared_ptr<DeviceCollectives> (*connect)(const DeviceCollectivesOptions& options);
    std::unique_ptr<DevicePassage> (*make_passage)(int device);
};

}  // namespace mezzo
