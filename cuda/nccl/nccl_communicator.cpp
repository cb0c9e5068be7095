#include "cuda/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "cuda/runtime/on_device.h"
#include "mezzo/error.h"

namespace mezzo::cuda::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto between_polls = std::chrono::microseconds(100);
constexpr auto longest_call = std::chrono::seconds(5);  // calls do not block; abort() waits no longer for one

Clock::time_point after(double seconds) {
    return Clock::now() + std::chrono::milliseconds(std::int64_t(std::min(seconds, 1e8) * 1e3));
}

}  // namespace

std::string CommunicatorHandle::words(const char* name, int result) const {
    std::string text = std::string("NCCL: ") + name + ": " + f_.error_string(result);
    const char* const more = communicator_ != nullptr ? f_.last_error(communicator_) : nullptr;
    if (more != nullptr && *more != 0) text += std::string(": ") + more;
    return text;
}

// Waits, with the mutex held, until the library has finished its background work. Returns in_progress if the
// deadline passes, or if *give_up becomes true.
int CommunicatorHandle::await(int result, Clock::time_point deadline, const std::atomic<bool>* give_up) {
    while (result == in_progress && Clock::now() < deadline && !aborted_ &&
           (give_up == nullptr || !give_up->load())) {
        std::this_thread::sleep_for(between_polls);
        int state = success;
        const int asked = f_.async_error(communicator_, &state);
        result = asked != success ? asked : state;
    }
    return result;
}

void CommunicatorHandle::connect(const DeviceCollectivesOptions& options) {
    UniqueId id{};
    check(options.id.size() == sizeof id, ErrorKind::backend, "NCCL: an id of ", options.id.size(),
          " bytes; it has ", sizeof id);
    std::memcpy(&id, options.id.data(), sizeof id);
    const OnDevice scope(device_);
    const std::lock_guard lock(mutex_);
    Config config;
    const int begun = f_.init_rank(&communicator_, options.size, id, options.rank, &config);
    const int result = await(begun, after(options.connect_timeout), options.give_up);
    timeout_ = options.timeout;
    if (result == in_progress && options.give_up != nullptr && options.give_up->load())
        fail(ErrorKind::backend, "NCCL: the group is broken");
    check(result != in_progress, ErrorKind::backend, "NCCL: the ranks were not connected within ",
          options.connect_timeout, " s");
    if (result != success) fail(ErrorKind::backend, words("ncclCommInitRankConfig", result));
}

void CommunicatorHandle::call(const char* name, const std::function<int(Communicator)>& function) {
    const std::lock_guard lock(mutex_);
    check(!aborted_, ErrorKind::backend, "NCCL: ", name, ": the group is broken");
    const int result = await(function(communicator_), after(timeout_), nullptr);
    check(!aborted_, ErrorKind::backend, "NCCL: ", name, ": the group is broken");
    check(result != in_progress, ErrorKind::backend, "NCCL: ", name, ": not begun within ", timeout_, " s");
    if (result != success) fail(ErrorKind::backend, words(name, result));
}

// Returns "" while another call is under way, because that call reports the error.
std::string CommunicatorHandle::async_error() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || aborted_) return "";
    int state = success;
    const int asked = f_.async_error(communicator_, &state);
    const int result = asked != success ? asked : state;
    return result == success || result == in_progress ? "" : words("an operation", result);
}

// Aborts without the mutex: the library waits for graphs that hold operations, and these may end only after
// their callers have been notified.
void CommunicatorHandle::run_abort() noexcept {
    Communicator ending = nullptr;
    {
        // Polls instead of using a timed mutex: gcc's thread sanitizer does not see its lock by a steady
        // clock.
        std::unique_lock lock(mutex_, std::defer_lock);
        const Clock::time_point deadline = Clock::now() + longest_call;
        while (!lock.try_lock() && Clock::now() < deadline) std::this_thread::sleep_for(between_polls);
        ending = communicator_;
    }
    if (ending != nullptr) f_.abort(ending);
    note_end();
}

void CommunicatorHandle::note_end() noexcept {
    const std::lock_guard lock(ending_);
    ended_ = true;
    ended_changed_.notify_all();
}

void CommunicatorHandle::abort() noexcept {
    if (aborted_.exchange(true)) return;
    try {
        std::thread([self = shared_from_this()] {
            try {
                set_device(self->device_);
            } catch (const std::exception&) {  // of a device that is lost; the communicator knows its own
            }
            self->run_abort();
        }).detach();
    } catch (const std::exception&) {
        note_end();  // no thread to be had: the operations end with the process
    }
}

void CommunicatorHandle::await_end(std::chrono::seconds limit) noexcept {
    std::unique_lock lock(ending_);
    ended_changed_.wait_for(lock, limit, [&] { return ended_; });
}

void CommunicatorHandle::finish(std::chrono::milliseconds limit) noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (aborted_ || communicator_ == nullptr) return;
        if (await(f_.finalize(communicator_), Clock::now() + limit, nullptr) == success) {
            aborted_ = true;
            f_.destroy(std::exchange(communicator_, nullptr));
            note_end();
            return;
        }
    }
    abort();
}

}  // namespace mezzo::cuda::nccl
