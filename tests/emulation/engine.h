// Runs CUDA kernels on the CPU for functional tests: one fiber per CUDA thread, one block at a time,
// deterministic for a given schedule. x86-64 Linux, GCC or Clang.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/emulation/graph.h"
#include "tests/emulation/sanitizers.h"

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline uint3 threadIdx, blockIdx;  // written by the engine only, on every switch
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace mezzo::emulation {

// A kernel broke a rule of CUDA; thrown out of launch().
struct Error : std::logic_error {
    using std::logic_error::logic_error;
};

// Source position at which a kernel called a collective. (std::source_location needs a newer clang than 14.)
struct Site {
    const char* file = "";
    int line = 0;
    static constexpr Site current(const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
        return {f, l};
    }
    friend bool operator==(Site a, Site b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }
    std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

enum class TensorSums {
    in_order,   // of mma.sync: term by term in float
    truncated,  // groups of eight terms, the last group first, bits below the largest term's cut off
};

struct Options {
    unsigned schedule = 0;         // 0 first in first out, 1 last in first out, else a random seed
    unsigned grid_limit = 3;       // what cuda::grid_limit() says
    unsigned multiprocessors = 0;  // if not 0: grid_limit() is that of a GPU with so many
    TensorSums tensor_sums = TensorSums::in_order;
    int capability = 90;                               // compute capability times ten
    std::size_t max_static_shared = 48 << 10;          // bytes a block may declare
    std::size_t max_shared = 99 << 10;                 // static + dynamic: 8.6, 8.9 and 12.0 have no more
    std::size_t device_memory = std::size_t(4) << 30;  // bytes device_malloc gives in total
    std::size_t pinned_blocks = 64;                    // that pinned_malloc gives at most
    int device_count = 1;
    const char* device_absence = "";  // why there is none, if device_count is 0
    const char* device_name = "emulated CUDA device";
    std::size_t l2_bytes = 16 << 10;
    bool capturing = false;     // what cuda::stream_is_capturing() says
    double clock_ms = -1;       // if not negative: what events record, instead of real time
    double launch_ms = 0;       // by which a launch moves that clock
    bool late_work = false;     // work on the device starts when the host waits for it, not when it is queued
    bool early_copies = false;  // copies on the copy stream start at once, not when something waits for them
    bool early_communication = false;                // and so does what is on the communication stream
    StreamOrder stream_order = StreamOrder::queued;  // in which launched graphs do what nothing orders
};
inline Options options;
inline int left_out = 0;            // GPUs without kernels, which the driver counts before the others
inline bool stuck = false;          // after an error that stays: cuda::synchronize() fails
inline int driver_version = 13010;  // what cuda::driver_version() says

// A cp.async on its way into shared memory.
struct AsyncCopy {
    void* to;
    const void* from;
    std::size_t bytes, zeros;  // copied, and zeros written behind them
    Site site;
};

struct Fiber {
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    std::size_t stack_size = 0;
    void* fake_stack = nullptr;  // ASan's, while parked
    void* tsan = nullptr;        // TSan's idea of the fiber
    uint3 thread{};              // the CUDA thread it plays in this block
    unsigned index = 0;          // the same, linear
    bool done = false;
    bool fenced = false;                         // has executed a __threadfence in this block
    std::vector<void*> atomics;                  // atomics done since the last fence
    std::vector<std::vector<AsyncCopy>> copies;  // by group; the last one is still open
    const char* waits_in = nullptr;              // for the deadlock report
    Site site;
    void* slot = nullptr;  // its data in a warp collective
};

class Engine {
public:
    static Engine& get();

    // Runs body(argument) once per thread of the grid.
    void run(dim3 grid, dim3 block, std::size_t dynamic_shared, void (*body)(void*), void* argument);

    enum class Vote { all, any, count };
    // __syncthreads and its variants with a vote: all threads of the block call it at one call site.
    int barrier(int predicate, Vote vote, Site site);

    // A warp call: the last lane of the mask to arrive runs complete(slots) for all; slots of other lanes are
    // null.
    void collective(unsigned mask, const char* what, Site site, bool orders_memory, void* slot,
                    void (*complete)(void** slots));

    // Happens-before of __threadfence and atomics: a fence before an atomic publishes, a fence after one
    // receives.
    void fence();
    void atomic(void* address);

    // The calling thread's asynchronous copies.
    std::vector<std::vector<AsyncCopy>>& copies() { return current_->copies; }

    void* shared_array(const void* key, std::size_t bytes, bool dynamic, Site site);
    void* dynamic_shared(Site site) { return shared_array(this, dynamic_bytes_, true, site); }

    unsigned lane() const { return current_->index % 32; }
    void yield();  // lets others run
    [[noreturn]] void fail(const std::string& what, Site site);

    // Device memory: under ASan poisoned while no kernel or copy runs, so that host code cannot touch it.
    void* device_malloc(std::size_t bytes);  // nullptr beyond options.device_memory
    void device_free(void* memory);
    void device_copy(void* to, const void* from, std::size_t bytes);
    void device_fill_zero(void* memory, std::size_t bytes);
    // Opens device memory to host code: the stand-in for the GEMM library computes in it.
    void open_device_memory();
    void close_device_memory();
    std::size_t device_bytes() const { return device_bytes_; }

private:
    // A collective in which some lanes of a warp wait.
    struct Collective {
        unsigned mask, arrived;
        const char* what;
        Site site;
        char* edge;
    };

    void make_fibers(unsigned count);
    void drop_fibers();
    void release_abandoned();
    void switch_to(Fiber& to);
    void landed(void* fake_stack);
    static void entry();
    void wake(Fiber* fiber);
    void park();
    void begin_block(std::uint64_t block, dim3 grid, dim3 shape);
    void run_blocks(dim3 grid, dim3 block);
    void free_shared();
    Collective& join(unsigned mask, const char* what, Site site);
    std::string stuck() const;
    char* new_edge() { return &edge_ring_[edge_next_++ % sizeof edge_ring_]; }
    void device_access(bool on);
    void require_no_copies();

    std::mutex mutex_;
    Fiber main_;
    std::vector<Fiber> fibers_;
    std::vector<Fiber*> by_index_;                // this block's fibers in thread order
    std::vector<std::vector<Collective>> warps_;  // open collectives per warp
    char* stacks_ = nullptr;
    Fiber* current_ = nullptr;
    unsigned threads_ = 0, finished_ = 0, arrived_ = 0, phase_ = 0, edge_next_ = 0;
    std::vector<Fiber*> ready_;  // runnable: [head, size)
    std::size_t ready_head_ = 0;
    std::uint64_t random_ = 1;
    char launch_edge_ = 0, done_edge_ = 0, *barrier_edge_ = nullptr, edge_ring_[4096] = {};
    Site barrier_site_;
    int votes_[3] = {1, 0, 0}, vote_results_[2][3] = {};
    void (*body_)(void*) = nullptr;
    void* argument_ = nullptr;
    std::exception_ptr error_;
    std::map<const void*, void*> shared_;  // this block's shared arrays
    std::size_t shared_bytes_ = 0, dynamic_bytes_ = 0;
    std::map<char*, std::size_t> device_;        // live device allocations
    std::atomic<std::size_t> device_bytes_ = 0;  // read without the lock
};

// Implementation of MEZZO_SHARED and MEZZO_DYN_SHARED.
template <class T> T& shared(const char* key, Site site = Site::current()) {
    return *static_cast<T*>(Engine::get().shared_array(key, sizeof(T), false, site));
}
inline void* dynamic_shared(Site site = Site::current()) { return Engine::get().dynamic_shared(site); }

// Stream capture: while there is a graph, what this thread would do to the device is put into it instead.
inline thread_local Graph* captured = nullptr;
// The stream that takes this thread's work.
inline thread_local StreamIndex stream_of_thread = main_stream;
void queue_work(std::function<void()> work);  // streams.h
void queue_communication(std::function<void()> work);
template <class F> void run_or_capture(const F& work) {
    if (captured != nullptr)
        captured->add(work, stream_of_thread);
    else if (stream_of_thread == communication_stream)
        queue_communication(work);
    else if (options.late_work)
        queue_work(work);
    else
        work();
}

// Called for each kernel, copy, fill and product when it runs on the device, also for those in graphs.
struct Work {
    const void* kernel = nullptr;  // or null, and `what` says it
    std::string what;
};
inline std::function<void(const Work&)> on_work;
inline void tell(const Work& work) {
    if (on_work) on_work(work);
}

// Called around what tests/emulation/faults.h makes fail: each kernel's run, with the device's memory open,
// and each copy from pinned memory, when it is queued and when it is done.
using DeviceMemory = std::map<char*, std::size_t>;  // live allocations and their sizes
inline std::function<void(const DeviceMemory&, bool done)> on_run;
inline std::function<void(void* to, std::size_t bytes, bool done)> on_copy_beside;

// Implementation of launch() of kernel.cuh.
template <class... P> void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t dynamic,
                                  std::type_identity_t<P>... args) {
    run_or_capture([=] {
        tell({reinterpret_cast<const void*>(kernel), {}});
        auto call = [&] { kernel(args...); };
        Engine::get().run(
            grid, block, dynamic, [](void* p) { (*static_cast<decltype(call)*>(p))(); }, &call);
    });
}

}  // namespace mezzo::emulation
