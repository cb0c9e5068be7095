// Copies from the host in order with the device's work, and counts of all copies between the two.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mezzo::cuda {

// Copies from pageable memory of more bytes make the host wait for all work that is queued on the stream; up to so many the
// driver takes over at once (CUDA programming guide, "asynchronous concurrent execution").
inline constexpr std::size_t pageable_limit = 64 << 10;

// Queues a copy on the current stream. The host memory is pinned, and must stay as it is until a marker after the copy has
// passed.
void copy_from_pinned(void* to, const void* pinned, std::size_t bytes);

struct CopyCount {
    std::uint64_t count = 0, bytes = 0;
};
// What this process has copied between host and device so far. Copies within the device are not among them.
struct HostCopies {
    CopyCount pinned, pageable;  // to the device, by where they come from
    CopyCount to_host;
};
HostCopies host_copies();

}  // namespace mezzo::cuda
