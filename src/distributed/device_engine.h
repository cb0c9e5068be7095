// Engine for collective operations on the memory of this rank's CUDA device: NCCL, if all ranks have it. The
// engine for host memory is separate.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device_collectives.h"
#include "distributed/collectives.h"
#include "mezzo/device.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

struct EngineTimes {
    double timeout = 1800, connect_timeout = 300;  // s
};

class DeviceEngine {
public:
    using Failed = std::function<void(const std::string& words, bool timed_out)>;
    DeviceEngine(const RankInfo& place, const EngineTimes& times, Failed failed);

    // Whether memory of this device would use this engine, if the other ranks agree. Opens no library.
    bool suits(Device device) const;
    // Logs, once, that tensors of this device go through host memory because it is not the rank's own device.
    void note_elsewhere(Device device) const noexcept;
    // Makes a stream hand-off: from the compute stream to the communication stream and back.
    std::unique_ptr<DevicePassage> make_passage() const;

    // Connects the ranks in its first call, and returns the connection. All ranks call it on the
    // communication thread in the same collective call. Returns null if two ranks share a device, or
    // if a rank has no NCCL and no rank requested it by name; all ranks then use host memory. Throws
    // Error(backend) on all ranks for other failures.
    std::shared_ptr<DeviceCollectives> connect(Collectives& host);
    // Returns null before connect().
    std::shared_ptr<DeviceCollectives> connected() const;
    std::string name() const;  // such as "NCCL 2.28.9"; "" if there is none
    void abort() noexcept;
    // Keeps memory of a broken group alive that operations may still read and write, until the communicator
    // has ended.
    void keep(const Tensors& memory);
    // Waits for queued operations, unless the engine has been aborted.
    void finish() const noexcept;
    // Ends the communicator and waits for its threads.
    void close() noexcept;
    // Leaks the communicator in a forked process, which has none of its threads.
    void forget() noexcept;

private:
    struct Offer;
    Offer offer() const;
    bool agree_on_library(Collectives& host);
    static std::string shared_device(const std::vector<Offer>& all);
    void stay_in_host_memory(const Collectives& host, const std::string& reason) const;
    std::string share_id(Collectives& host) const;
    void connect_ranks(Collectives& host);

    const RankInfo place_;
    const EngineTimes times_;
    const Failed failed_;
    const Device device_;
    const DeviceCollectivesLibrary* library_ = nullptr;
    bool decided_ = false;  // used on the communication thread
    std::atomic<bool> aborted_{false};
    mutable std::atomic<bool> noted_{false};
    mutable std::mutex mutex_;
    Tensors kept_;
    std::shared_ptr<DeviceCollectives> connected_;
    std::string name_;
};

}  // namespace mezzo::distributed
