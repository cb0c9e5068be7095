// The CPU thread pool. It runs one parallel loop at a time and hands out chunks dynamically, so that a slow
// or preempted thread delays only the chunk that it has taken.
#pragma once

#include <cstdint>

#include "core/internal.h"

namespace mezzo::cpu {

// Number of threads that a parallel loop may use, the calling thread included. Default: the number of
// processors that this process may run on.
MEZZO_INTERNAL int num_threads();

// Sets num_threads(). Throws Error(value) unless n is 1 to 1024, and Error(state) inside a parallel loop. If
// the system cannot start that many, the first loop goes on with fewer, and num_threads() is their number
// from then on.
void set_num_threads(int n);

// Whether the calling thread runs the body of a parallel loop or has a SerialScope: its loops then run
// inline.
MEZZO_INTERNAL bool in_parallel_region();

// Scope in which parallel loops of the thread that created it run inline.
class MEZZO_INTERNAL SerialScope {
public:
    SerialScope();
    ~SerialScope();
    SerialScope(const SerialScope&) = delete;
    SerialScope& operator=(const SerialScope&) = delete;

private:
    bool before_;
};

namespace detail {
MEZZO_INTERNAL void run_parallel(std::int64_t n, std::int64_t grain,
                                 void (*call)(const void*, std::int64_t, std::int64_t), const void* body);
}  // namespace detail

// Calls body(begin, end) on disjoint ranges that cover [0, n), each at least `grain` long except the last.
// Runs inline if n <= grain, with one thread, inside another parallel loop, or while another thread is using
// the pool. The first exception that a body throws is rethrown here; ranges that have not been started by
// then are skipped.
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
