// The streams of an emulated device: compute, copies, and communication (communication.h). Each
// does its work in the order in which it was queued. Work on the compute stream runs at once, or with
// options.late_work when something waits for it. Copies run when something waits for them, or with
// options.early_copies as soon as the order allows. So a missing wait gives wrong values.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "cuda/runtime/runtime.h"
#include "tests/emulation/graph.h"

namespace mezzo::emulation {

class Streams {
public:
    static Streams& get();  // of the current device
    explicit Streams(int device) : device_(device) {}

    // On the compute or the copy stream.
    void add(cuda::StreamKind kind, std::function<void()> work);
    // The number of pieces of work queued so far.
    std::uint64_t position(cuda::StreamKind kind);
    // Makes work that is queued on `kind` from now on wait for the first `position` pieces of `other`.
    void hold(cuda::StreamKind kind, cuda::StreamKind other, std::uint64_t position);
    bool done(cuda::StreamKind kind, std::uint64_t position);
    // The host waits for the first `position` pieces.
    void run_until(cuda::StreamKind kind, std::uint64_t position);
    void finish(cuda::StreamKind kind) { run_until(kind, position(kind)); }
    void finish_all();  // but communication, which may wait for other processes

private:
    struct Op {
        std::function<void()> work;  // none: waits
        cuda::StreamKind other = cuda::StreamKind::compute;
        std::uint64_t position = 0;
    };
    struct Stream {
        std::deque<Op> ops;
        std::uint64_t queued = 0;
        std::atomic<std::uint64_t> done{0};
    };
    // Lock of all streams. A thread that does not get it in try_run_until() waits until it is released.
    class Lock {
    public:
        explicit Lock(Streams& streams) : streams_(streams) { streams_.mutex_.lock(); }
        ~Lock();
        Lock(const Lock&) = delete;
        Lock& operator=(const Lock&) = delete;

    private:
        Streams& streams_;
    };
    Stream& stream(cuda::StreamKind kind) { return streams_[int(kind)]; }
    void queue(cuda::StreamKind kind, Op op);
    void run_early_copies();
    bool try_run_until(cuda::StreamKind kind, std::uint64_t position);

    const int device_;
    std::recursive_mutex mutex_;
    std::atomic<bool> wanted_{false};  // try_run_until() has not got the mutex
    Stream streams_[2];
};

// Implementation of cuda::current_stream().
void* stream_of(int device, StreamIndex stream);

// The number of blocks of pinned memory now.
std::size_t pinned_blocks();

}  // namespace mezzo::emulation
