// Pinned host buffers from which a device copies while it computes, and their pool.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/internal.h"
#include "mezzo/device.h"

namespace mezzo {

// Staging buffer of one batch. All members but memory() and bytes() may throw Error(backend).
class StagingBuffer {
public:
    struct Copy {
        void* to;  // on the device
        std::size_t offset, bytes;
    };
    StagingBuffer(void* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
    virtual ~StagingBuffer() = default;  // to be called only when idle
    StagingBuffer(const StagingBuffer&) = delete;
    StagingBuffer& operator=(const StagingBuffer&) = delete;

    void* memory() const { return memory_; }
    std::size_t bytes() const { return bytes_; }

    // Starts copies that overlap the device's work, but begin after the work that is queued now, which may
    // still use a target.
    virtual void send(std::span<const Copy> parts) = 0;
    // Queues a copy behind the device's work; work that is queued later comes after it.
    virtual void send_in_order(const Copy& part) = 0;
    // Makes the work that is queued on the device from now on wait for the copies.
    virtual void receive() = 0;
    // The same for copies that will not be read, so that their targets may be released. Also allowed while
    // the calling thread captures a step; then the host waits for the copies.
    virtual void drop() = 0;
    // Whether the copies are done, so that the memory may be written again.
    virtual bool idle() const = 0;
    // Waits until the copies are done; counts as a host synchronisation.
    virtual void wait() = 0;

private:
    void* const memory_;
    const std::size_t bytes_;
};

// An idle buffer of at least `bytes` for copies to the device, from the pool or new; null if there is no
// memory for it, or the device cannot copy while it works.
MEZZO_INTERNAL std::unique_ptr<StagingBuffer> take_staging(Device device, std::size_t bytes);
// Puts a buffer into the pool. Its copies may still be under way.
MEZZO_INTERNAL void give_staging(Device device, std::unique_ptr<StagingBuffer> buffer) noexcept;

// Copies host memory to the device, in order with the device's work. Copies larger than those that drivers
// buffer themselves go through pinned buffers, so that the host does not wait for queued work; it waits only
// while all buffers for such copies are in use. The host memory may be reused on return. Throws
// Error(backend).
void copy_from_host(Device device, void* to, const void* from, std::size_t bytes);

}  // namespace mezzo
