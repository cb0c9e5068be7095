// Host memory from which a device copies while it computes, and the buffers of it that wait for their next
// use.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "mezzo/device.h"

namespace mezzo {

// One batch on its way. Members but memory() may throw Error(backend).
class StagingBuffer {
public:
    struct Part {
        void* to;  // on the device
        std::size_t offset, bytes;
    };
    StagingBuffer(void* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
    virtual ~StagingBuffer() = default;  // only when idle
    StagingBuffer(const StagingBuffer&) = delete;
    StagingBuffer& operator=(const StagingBuffer&) = delete;

    void* memory() const { return memory_; }
    std::size_t bytes() const { return bytes_; }

    // Starts copies that run beside the device's work, but after all that is queued on it now: a target may
    // still be in use there.
    virtual void send(std::span<const Part> parts) = 0;
    // What is queued on the device from now on comes after the copies.
    virtual void receive() = 0;
    // The same for copies that nobody will read: their targets may be released then. Allowed while this
    // thread captures a step, which makes the host wait.
    virtual void drop() = 0;
    // Whether the copies are done, so that the memory may be written again.
    virtual bool idle() const = 0;
    // Until idle; counts as a host synchronisation.
    virtual void wait() = 0;

private:
    void* const memory_;
    const std::size_t bytes_;
};

// An idle buffer of at least `bytes` for copies to the device, kept from an earlier use or new; null if
// there is no memory for it, or the device has no copies beside its work.
std::unique_ptr<StagingBuffer> take_staging(Device device, std::size_t bytes);
// For a later use. Its copies may still be under way.
void give_staging(Device device, std::unique_ptr<StagingBuffer> buffer) noexcept;

}  // namespace mezzo
