#include "core/memory/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/backend.h"

namespace mezzo {
namespace {

constexpr std::size_t smallest_buffer = 64 << 10;
// Limits of copies in order with the device's work.
constexpr std::size_t largest_piece = 16 << 20;  // larger copies are cut
constexpr std::size_t most_in_use = 128 << 20;   // bytes of buffers in the pool per device, if they suffice

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

// Powers of two, so that batches of varying length share few buffers.
std::size_t buffer_size(std::size_t bytes) { return std::bit_ceil(std::max(bytes, smallest_buffer)); }

using Position = std::vector<Kept>::iterator;

std::unique_ptr<StagingBuffer> take_from(Pool& all, Position place) {
    std::unique_ptr<StagingBuffer> buffer = std::move(place->buffer);
    all.kept.erase(place);
    return buffer;
}

// If one more buffer would exceed the device's limit and none of at least `size` bytes is idle, takes the
// smallest busy one (of equal ones the first that was returned to the pool). Otherwise null.
std::unique_ptr<StagingBuffer> take_busy(Device device, std::size_t size) {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    std::size_t bytes = size;
    Position oldest = all.kept.end();
    for (auto it = all.kept.begin(); it != all.kept.end(); ++it) {
        if (!(it->device == device)) continue;
        bytes += it->buffer->bytes();
        if (it->buffer->bytes() < size) continue;
        if (it->buffer->idle()) return nullptr;
        if (oldest == all.kept.end()) oldest = it;
    }
    return bytes > most_in_use && oldest != all.kept.end() ? take_from(all, oldest) : nullptr;
}

// Copies at most largest_piece bytes; false where there is no pinned memory.
bool copy_piece(Device device, void* to, const void* from, std::size_t bytes) {
    std::unique_ptr<StagingBuffer> buffer = take_busy(device, buffer_size(bytes));
    const bool busy = buffer != nullptr;
    if (!busy) buffer = take_staging(device, bytes);
    if (buffer == nullptr) return false;
    try {
        if (busy) buffer->wait();
        std::memcpy(buffer->memory(), from, bytes);
        buffer->send_in_order({.to = to, .offset = 0, .bytes = bytes});
    } catch (...) {
        give_staging(device, std::move(buffer));
        throw;
    }
    give_staging(device, std::move(buffer));
    return true;
}

}  // namespace

std::unique_ptr<StagingBuffer> take_staging(Device device, std::size_t bytes) {
    const Backend& found = backend_of("prefetch", device);
    if (found.make_staging == nullptr) return nullptr;
    const std::size_t size = buffer_size(bytes);
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    auto smaller = all.kept.end();
    std::size_t kept = size;
    for (auto it = all.kept.begin(); it != all.kept.end(); ++it) {
        if (!(it->device == device)) continue;
        kept += it->buffer->bytes();
        if (!it->buffer->idle()) continue;
        if (it->buffer->bytes() < size) {
            smaller = it;
            continue;
        }
        return take_from(all, it);
    }
    // The driver waits for the device when pinned memory is freed, so a smaller buffer is freed only if the
    // device's buffers exceed the limit.
    if (smaller != all.kept.end() && kept > most_in_use) all.kept.erase(smaller);
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

void copy_from_host(Device device, void* to, const void* from, std::size_t bytes) {
    const Backend& target = backend_of("copy", device);
    std::size_t done = 0;
    if (target.make_staging != nullptr && bytes > smallest_buffer)
        while (done < bytes) {
            const std::size_t piece = std::min(bytes - done, largest_piece);
            if (!copy_piece(device, static_cast<char*>(to) + done, static_cast<const char*>(from) + done,
                            piece))
                break;
            done += piece;
        }
    if (done < bytes)
        target.copy_in(device.index, static_cast<char*>(to) + done, static_cast<const char*>(from) + done,
                       bytes - done);
}

}  // namespace mezzo
