#include "mezzo/train/stop_signals.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace mezzo::training {

namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);  // the handler may write it

extern "C" void mezzo_note_signal(int number) { noted.store(number, std::memory_order_relaxed); }

constexpr int signals[] = {SIGTERM, SIGINT};

struct Handlers {
    std::mutex mutex;
    int users = 0;
    struct sigaction before[2];
};
Handlers& handlers() {
    static Handlers all;
    return all;
}

}  // namespace

StopSignals::StopSignals() {
    Handlers& all = handlers();
    const std::lock_guard lock(all.mutex);
    if (all.users++ > 0) return;
    struct sigaction action {};
    action.sa_handler = mezzo_note_signal;
    action.sa_flags = SA_RESTART;
    for (int i = 0; i < 2; ++i) sigaction(signals[i], &action, &all.before[i]);
}

StopSignals::~StopSignals() {
    Handlers& all = handlers();
    const std::lock_guard lock(all.mutex);
    if (--all.users > 0) return;
    for (int i = 0; i < 2; ++i) sigaction(signals[i], &all.before[i], nullptr);
}

bool StopSignals::received() const { return last() != 0; }
int StopSignals::last() { return noted.load(std::memory_order_relaxed); }
void StopSignals::clear() { noted.store(0, std::memory_order_relaxed); }

}  // namespace mezzo::training
