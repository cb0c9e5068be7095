#include "tests/emulation/communication.h"

#include <condition_variable>
#include <exception>
#include <utility>

#include "cuda/runtime/runtime.h"
#include "tests/emulation/engine.h"

namespace mezzo::emulation {
namespace {

struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t count = 0;
};
Progress& all_progress() {
    static Progress* const one = new Progress;  // threads may wait in it when the program ends
    return *one;
}

}  // namespace

void note_progress() {
    Progress& p = all_progress();
    const std::lock_guard lock(p.mutex);
    ++p.count;
    p.changed.notify_all();
}
std::uint64_t progress() {
    Progress& p = all_progress();
    const std::lock_guard lock(p.mutex);
    return p.count;
}
void wait_for_progress(std::uint64_t since) {
    Progress& p = all_progress();
    std::unique_lock lock(p.mutex);
    p.changed.wait(lock, [&] { return p.count != since; });
}

CommunicationStream& communication_of(int device) {
    static auto* const all = new CommunicationStream[64];
    return all[device];
}

void queue_communication(std::function<void()> work) {
    communication_of(cuda::current_device()).add([work = std::move(work)] {
        work();
        return true;
    });
}

void CommunicationStream::add(Work work) {
    std::uint64_t position = 0;
    {
        const std::lock_guard lock(mutex_);
        works_.push_back(std::move(work));
        position = ++queued_;
    }
    note_progress();
    if (options.early_communication) advance(position);
}

std::uint64_t CommunicationStream::position() {
    const std::lock_guard lock(mutex_);
    return queued_;
}

bool CommunicationStream::take_over(std::uint64_t position) {
    const std::lock_guard lock(mutex_);
    if (done_ >= position) return false;
    skipped_ |= driven_;
    return !driven_ && (driven_ = true);
}

void CommunicationStream::let_go() {
    bool skipped = false;
    {
        const std::lock_guard lock(mutex_);
        driven_ = false;
        std::swap(skipped, skipped_);
    }
    if (skipped) note_progress();
}

// The work at the front stays there while it runs; only the thread that drives takes it away.
void CommunicationStream::advance(std::uint64_t position) {
    if (!take_over(position)) return;
    std::exception_ptr error;
    while (done_ < position && error == nullptr) {
        Work* front = nullptr;
        {
            const std::lock_guard lock(mutex_);
            if (!works_.empty()) front = &works_.front();  // a deque does not move its elements
        }
        if (front == nullptr) break;  // announced, and not there yet
        const StreamIndex stream = std::exchange(stream_of_thread, main_stream);
        try {
            if (!(*front)()) {
                stream_of_thread = stream;
                break;
            }
        } catch (...) {
            error = std::current_exception();
        }
        stream_of_thread = stream;
        Work ended;  // destroyed without the lock: what it holds takes locks of its own
        {
            const std::lock_guard lock(mutex_);
            ended = std::move(works_.front());
            works_.pop_front();
            ++done_;
        }
        note_progress();
    }
    let_go();
    if (error != nullptr) std::rethrow_exception(error);
}

void CommunicationStream::run_until(std::uint64_t position) {
    for (;;) {
        const std::uint64_t seen = progress();
        advance(position);
        if (done(position)) return;
        wait_for_progress(seen);
    }
}

}  // namespace mezzo::emulation
