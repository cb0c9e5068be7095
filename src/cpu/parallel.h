// The CPU thread pool: one parallel loop at a time, chunks handed out dynamically so that a slow or
// preempted thread only delays the chunk it holds.
#pragma once

#include <cstdint>

namespace mezzo::cpu {

// How many threads a parallel loop may use, the caller included. Default: the processors this process may run
// on.
int num_threads();

// Sets num_threads(); 1 to 1024, else Error. Where the system cannot start that many, the first loop goes on
// with fewer, and num_threads() is their number from then on. Not from inside a parallel loop (Error,
// ErrorKind::state).
void set_num_threads(int n);

// True while this thread runs the body of a parallel loop; loops inside it run inline.
bool in_parallel_region();

// While it lives, loops of this thread run inline.
class SerialScope {
public:
    SerialScope();
    ~SerialScope();
    SerialScope(const SerialScope&) = delete;
    SerialScope& operator=(const SerialScope&) = delete;

private:
    bool before_;
};

namespace detail {
void run_parallel(std::int64_t n, std::int64_t grain, void (*call)(const void*, std::int64_t, std::int64_t),
                  const void* body);
}  // namespace detail

// Calls body(begin, end) on disjoint ranges that cover [0, n), each at least `grain` long except the last.
// Runs inline when n <= grain, with one thread, inside another parallel loop, or while another user thread
// uses the pool. The first exception a body throws is rethrown here; ranges not yet started are then dropped.
template <class F> void parallel_for(std::int64_t n, std::int64_t grain, const F& body) {
    if (n <= 0) return;
    if (n <= grain || in_parallel_region() || num_threads() == 1) {
        body(std::int64_t(0), n);
        return;
    }
    detail::run_parallel(
        n, grain,
        [](const void* f, std::int64_t begin, std::int64_t end) { (*static_cast<const F*>(f))(begin, end); },
        &body);
}

}  // namespace mezzo::cpu
