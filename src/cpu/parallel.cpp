#include "cpu/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/system/processors.h"
#include "mezzo/error.h"

namespace mezzo::cpu {
namespace {

constexpr int max_threads = 1024;

using Clock = std::chrono::steady_clock;

// How long a thread spins before it sleeps: longer than most of the time between two loops of a step, because
// to wake a thread takes tens of microseconds. A worker that has spun in vain spins half as long the next
// time, down to the least, which is too short to take time from other processes.
constexpr std::chrono::microseconds longest_spin{50}, least_spin{2};

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");  // most processors take no time for "yield"
#endif
}

// Whether done() became true before the time was over.
template <class F> bool spin(Clock::duration time, const F& done) {
    constexpr int rounds = 8;  // between two looks at the clock
    const Clock::time_point end = Clock::now() + time;
    do
        for (int i = 0; i < rounds; ++i) {
            if (done()) return true;
            pause_briefly();
        }
    while (Clock::now() < end);
    return done();
}

thread_local bool inside = false;  // a parallel loop, or a SerialScope
std::atomic<int> thread_count{0};  // 0: not determined yet

struct [[nodiscard]] RegionGuard {
    RegionGuard() { inside = true; }
    ~RegionGuard() { inside = false; }
    RegionGuard(const RegionGuard&) = delete;
    RegionGuard& operator=(const RegionGuard&) = delete;
};

class Pool {
public:
    // Never destroyed: threads may compute during exit(), and so may destructors of static objects.
    static Pool& instance() {
        static Pool& pool = *new Pool;
        return pool;
    }

    // Returns false if another thread is using the pool.
    bool run(std::int64_t n, std::int64_t grain, void (*call)(const void*, std::int64_t, std::int64_t),
             const void* body) {
        const std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
        if (!owner.owns_lock()) return false;
        if (static_cast<int>(workers_.size()) != num_threads() - 1) start(num_threads() - 1);
        const int threads = num_threads();
        n_ = n;
        chunk_ = std::max<std::int64_t>({1, grain, n / (std::int64_t(threads) * 8)});
        call_ = call;
        body_ = body;
        error_ = nullptr;
        next_.store(0, std::memory_order_relaxed);
        state_.store(open, std::memory_order_release);
        wake(std::min<std::int64_t>(threads - 1, (n + chunk_ - 1) / chunk_ - 1));
        work();
        close();
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
        return true;
    }

    void resize(int threads) {
        const std::lock_guard<std::mutex> owner(owner_);
        stop();
        thread_count = threads;
    }

private:
    static constexpr std::uint32_t open = 1u << 31;  // bit of state_; the others count the workers inside

    void wake(std::int64_t count) {
        epoch_.fetch_add(1, std::memory_order_release);
        if (count >= static_cast<std::int64_t>(workers_.size()))
            epoch_.notify_all();
        else
            for (std::int64_t i = 0; i < count; ++i) epoch_.notify_one();
    }

    // Takes chunks until none is left. close() waits only for workers that have joined; a worker that wakes
    // later finds the loop closed.
    void work() {
        const RegionGuard guard;
        for (;;) {
            const std::int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
            if (begin >= n_) return;
            try {
                call_(body_, begin, std::min(n_, begin + chunk_));
            } catch (...) {
                const std::lock_guard<std::mutex> lock(error_mutex_);
                if (!error_) error_ = std::current_exception();
                next_.store(n_, std::memory_order_relaxed);
            }
        }
    }

    void close() {
        std::uint32_t seen = state_.fetch_and(~open, std::memory_order_acq_rel) & ~open;
        if (seen != 0) spin(spin_time_, [&] { return (seen = state_.load(std::memory_order_acquire)) == 0; });
        while (seen != 0) {
            state_.wait(seen, std::memory_order_acquire);
            seen = state_.load(std::memory_order_acquire);
        }
    }

    bool join() {
        std::uint32_t seen = state_.load(std::memory_order_relaxed);
        while (seen & open)
            if (state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) return true;
        return false;
    }

    void worker(std::uint32_t seen) {
        Clock::duration time = spin_time_;
        for (;;) {
            const Clock::time_point idle = Clock::now();
            spin(time, [&] { return epoch_.load(std::memory_order_relaxed) != seen; });
            epoch_.wait(seen, std::memory_order_acquire);
            time = Clock::now() - idle < spin_time_ ? spin_time_
                                                    : std::max<Clock::duration>(time / 2, least_spin);
            seen = epoch_.load(std::memory_order_acquire);
            if (stopping_.load(std::memory_order_acquire)) return;
            if (!join()) continue;
            work();
            if (state_.fetch_sub(1, std::memory_order_acq_rel) == 1) state_.notify_all();
        }
    }

    // Starts the workers. If the system cannot start that many threads, num_threads() becomes the number that
    // it has started.
    void start(int count) {
        stop();
        pid_ = getpid();
        stopping_ = false;
        spin_time_ = count < available_processors() ? longest_spin : least_spin;
        const std::uint32_t now = epoch_.load();
        try {
            workers_.reserve(static_cast<std::size_t>(count));
            while (static_cast<int>(workers_.size()) < count)
                workers_.emplace_back([this, now] { worker(now); });
        } catch (const std::exception&) {  // system_error, or bad_alloc
            thread_count = static_cast<int>(workers_.size()) + 1;
        }
    }

    // Stops and joins the workers. After fork() the child has no worker threads to join.
    void stop() {
        stopping_ = true;
        epoch_.fetch_add(1);
        epoch_.notify_all();
        for (std::thread& thread : workers_) pid_ == getpid() ? thread.join() : thread.detach();
        workers_.clear();
    }

    std::mutex owner_;  // held by the thread that called run()
    std::vector<std::thread> workers_;
    pid_t pid_ = 0;
    std::atomic<bool> stopping_{false};
    Clock::duration spin_time_ = least_spin;

    alignas(64) std::atomic<std::uint32_t> epoch_{0};  // rises for each loop, and when the pool stops
    alignas(64) std::atomic<std::uint32_t> state_{0};
    alignas(64) std::atomic<std::int64_t> next_{0};  // the first index that no thread has taken
    alignas(64) std::int64_t n_ = 0;
    std::int64_t chunk_ = 1;
    void (*call_)(const void*, std::int64_t, std::int64_t) = nullptr;
    const void* body_ = nullptr;
    std::mutex error_mutex_;
    std::exception_ptr error_;
};

}  // namespace

int num_threads() {
    const int count = thread_count.load(std::memory_order_relaxed);
    if (count != 0) return count;
    int none = 0;
    thread_count.compare_exchange_strong(none, std::min(available_processors(), max_threads));
    return thread_count.load(std::memory_order_relaxed);
}

void set_num_threads(int n) {
    check(n >= 1 && n <= max_threads, ErrorKind::value, "set_num_threads: got ", n, "; 1 to ", max_threads,
          " threads are supported");
    check(!inside, ErrorKind::state, "set_num_threads: called from inside a parallel loop; call it before");
    Pool::instance().resize(n);
}

bool in_parallel_region() { return inside; }

SerialScope::SerialScope() : before_(std::exchange(inside, true)) {}
SerialScope::~SerialScope() { inside = before_; }

void detail::run_parallel(std::int64_t n, std::int64_t grain,
                          void (*call)(const void*, std::int64_t, std::int64_t), const void* body) {
    if (!Pool::instance().run(n, grain, call, body)) call(body, 0, n);
}

}  // namespace mezzo::cpu
