// The communication stream of an emulated device. Its work runs when something waits for it, or with
// options.early_communication as soon as it can, in whichever thread that is. Some of it needs other devices:
// it says that it has not ended yet, and is asked again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace mezzo::emulation {

class CommunicationStream {
public:
    using Work = std::function<bool()>;  // whether it has ended

    void add(Work work);
    std::uint64_t position();
    bool done(std::uint64_t position) const { return done_.load() >= position; }
    // Does of the first `position` pieces what can be done at once.
    void advance(std::uint64_t position);
    void run_until(std::uint64_t position);

private:
    bool take_over(std::uint64_t position);
    void let_go();

    std::mutex mutex_;
    std::deque<Work> works_;
    std::uint64_t queued_ = 0;
    std::atomic<std::uint64_t> done_{0};
    bool driven_ = false, skipped_ = false;
};

// Of a device.
CommunicationStream& communication_of(int device);

// Something has happened for which work of a communication stream may have waited.
void note_progress();
std::uint64_t progress();
void wait_for_progress(std::uint64_t since);

}  // namespace mezzo::emulation
