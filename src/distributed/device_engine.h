// The engine for the memory of this rank's CUDA device, beside the one for host memory: NCCL where all ranks have it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device_collectives.h"
#include "distributed/collectives.h"
#include "distributed/place.h"
#include "mezzo/device.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

struct EngineTimes {
    double timeout = 1800, connect_timeout = 300;  // s
};

class DeviceEngine {
public:
    using Failed = std::function<void(const std::string& words, bool timed_out)>;
    DeviceEngine(const Place& place, const EngineTimes& times, Failed failed);

    // Whether memory of this device would go through it, if the other ranks agree. Opens nothing.
    bool suits(Device device) const;
    // Has the log say, once, that tensors of this device take the way through host memory because it is not the rank's own.
    void note_elsewhere(Device device) const noexcept;
    // The way of memory to the communication stream and back.
    std::unique_ptr<DevicePassage> make_passage() const;

    // On the communication thread, by all ranks in the same call: connects them when it is first called. Null where a rank has no NCCL and nobody asked for
    // one by name; all ranks then use host memory. Error(backend) on all ranks otherwise.
    std::shared_ptr<DeviceCollectives> connect(Collectives& host);
    // Null before that.
    std::shared_ptr<DeviceCollectives> connected() const;
    std::string name() const;  // such as "NCCL 2.28.9"; "" if there is none
    void abort() noexcept;
    // Of a group that is broken: memory that operations may still read and write, until the communicator has ended.
    void keep(const Tensors& memory);
    // Waits for what is queued, unless it has been aborted.
    void finish() const noexcept;
    // Ends the communicator, and waits for its threads.
    void close() noexcept;
    // In a forked process, which has none of these threads.
    void forget() noexcept;

private:
    struct Offer;
    Offer offer() const;
    bool agree_on_library(Collectives& host);
    static std::string shared_device(const std::vector<Offer>& all);
    void stay_in_host_memory(const Collectives& host, const std::string& reason) const;
    std::string share_id(Collectives& host) const;
    void connect_ranks(Collectives& host);

    const Place place_;
    const EngineTimes times_;
    const Failed failed_;
    const Device device_;
    const DeviceCollectivesLibrary* library_ = nullptr;
    bool decided_ = false;  // on the communication thread
    std::atomic<bool> aborted_{false};
    mutable std::atomic<bool> noted_{false};
    mutable std::mutex mutex_;
    Tensors kept_;
    std::shared_ptr<DeviceCollectives> connected_;
    std::string name_;
};

}  // namespace mezzo::distributed
