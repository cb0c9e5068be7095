#include "core/staging.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <vector>

#include "core/backend.h"

namespace mezzo {
namespace {

constexpr std::size_t smallest_buffer = 64 << 10;

struct Kept {
    Device device;
    std::unique_ptr<StagingBuffer> buffer;
};
struct Pool {
    std::mutex mutex;
    std::vector<Kept> kept;  // smallest first
    std::size_t made = 0;    // never more than that are returned
};
// Leaked: the driver may be gone when destructors of statics run.
Pool& pool() {
    static Pool* const all = new Pool;
    return *all;
}

}  // namespace

std::unique_ptr<StagingBuffer> take_staging(Device device, std::size_t bytes) {
    const Backend& found = backend_of("prefetch", device);
    if (found.make_staging == nullptr) return nullptr;
    // powers of two, so that batches of varying length share few buffers
    const std::size_t size = std::bit_ceil(std::max(bytes, smallest_buffer));
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    auto smaller = all.kept.end();
    for (auto it = all.kept.begin(); it != all.kept.end(); ++it) {
        if (!(it->device == device) || !it->buffer->idle()) continue;
        if (it->buffer->bytes() < size) {
            smaller = it;
            continue;
        }
        std::unique_ptr<StagingBuffer> buffer = std::move(it->buffer);
        all.kept.erase(it);
        return buffer;
    }
    if (smaller != all.kept.end()) all.kept.erase(smaller);  // the new one takes its place
    all.kept.reserve(++all.made);
    return found.make_staging(device.index, size);
}

void give_staging(Device device, std::unique_ptr<StagingBuffer> buffer) noexcept {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    const auto place =
        std::upper_bound(all.kept.begin(), all.kept.end(), buffer->bytes(),
                         [](std::size_t size, const Kept& kept) { return size < kept.buffer->bytes(); });
    all.kept.insert(place, {device, std::move(buffer)});
}

}  // namespace mezzo
