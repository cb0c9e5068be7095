// Host-to-device copies in stream order, and counts of all copies between host and device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mezzo::cuda {

// Largest copy from pageable memory that does not stall the host: the driver takes over a copy of up to this
// many bytes at once; with a larger one the host waits for all work queued on the stream (CUDA programming
// guide, "asynchronous concurrent execution").
inline constexpr std::size_t pageable_limit = 64 << 10;

// Queues a copy on the current stream. The host memory is pinned, and must stay as it is until a marker after
// the copy has passed.
void copy_from_pinned(void* to, const void* pinned, std::size_t bytes);

struct CopyCount {
    std::uint64_t count = 0, bytes = 0;
};
// Counts of this process's copies between host and device so far, without copies within the device.
struct HostCopies {
    CopyCount pinned, pageable;  // to the device, by where they come from
    CopyCount to_host;
};
HostCopies host_copies();

}  // namespace mezzo::cuda
