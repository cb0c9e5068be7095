// A communicator of NCCL that never blocks, and that any thread can abort.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cuda/nccl/nccl.h"

namespace mezzo::cuda::nccl {

class CommunicatorHandle : public std::enable_shared_from_this<CommunicatorHandle> {
public:
    explicit CommunicatorHandle(int device) : device_(device), f_(functions()) {}
    CommunicatorHandle(const CommunicatorHandle&) = delete;
    CommunicatorHandle& operator=(const CommunicatorHandle&) = delete;

    // Returns when all ranks have connected. Error(backend) otherwise, or when *give_up becomes true.
    void connect(const DeviceCollectivesOptions& options);
    // Calls the library for this communicator, and returns when it has taken the call over. Throws
    // Error(backend) if it refuses, and after abort().
    void call(const char* name, const std::function<int(Communicator)>& function);
    // Message of an error since connect(); "" if there is none.
    std::string async_error();

    // Aborts on a separate thread, because the library has been seen to hang.
    void abort() noexcept;
    bool aborted() const { return aborted_.load(); }  // or finished
    // Ends a communicator in which nothing is under way. Waits for at most so long, and aborts it then.
    void finish(std::chrono::milliseconds limit) noexcept;
    // Returns when abort() or finish() has ended it, or after so long.
    void await_end(std::chrono::seconds limit) noexcept;

private:
    std::string words(const char* name, int result) const;
    int await(int result, std::chrono::steady_clock::time_point deadline, const std::atomic<bool>* give_up);
    void run_abort() noexcept;
    void note_end() noexcept;

    const int device_;
    const Functions& f_;
    std::atomic<bool> aborted_{false};
    mutable std::mutex mutex_;  // held during each call of the library but abort
    Communicator communicator_ = nullptr;
    double timeout_ = 0;  // s, for the library to take over a call: the first ones wait for other ranks
    std::mutex ending_;
    std::condition_variable ended_changed_;
    bool ended_ = false;
};

}  // namespace mezzo::cuda::nccl
