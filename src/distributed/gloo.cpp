// Collective operations by Gloo over TCP. The only file that includes Gloo; it is built as a separate module
// (gloo_module.h).
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "distributed/element_reduction.h"
#include "distributed/gloo_module.h"

// Static programs do not export the library's definition to this module. It is never called: dtypes are those
// of tensors.
void mezzo::detail::unknown_dtype(int number) {
    throw std::invalid_argument("Dtype: " + std::to_string(number) + " is no dtype");
}

namespace mezzo::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds longest_wake{5};
constexpr std::uint8_t unused_prefix = 0x7f;  // of slots in abort(); Gloo's operations use others

std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(std::min(seconds, 1e8) * 1e3)));
}

class Store final : public gloo::rendezvous::Store {
public:
    explicit Store(KeyValues& values) : values_(values) {}
    void set(const std::string& key, const std::vector<char>& data) override {
        values_.set("gloo/" + key, std::string(data.begin(), data.end()));
    }
    std::vector<char> get(const std::string& key) override {
        const std::string value = values_.get("gloo/" + key);
        return {value.begin(), value.end()};
    }
    void wait(const std::vector<std::string>& keys) override {
        for (const std::string& key : keys) values_.get("gloo/" + key);
    }
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

private:
    KeyValues& values_;
};

// Blocks SIGPIPE in this thread: Gloo writes to connections whose other end may be gone, and the signal would
// end the process.
class NoPipeSignal {
public:
    NoPipeSignal() {
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        sigset_t pending;
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    ~NoPipeSignal() {
        constexpr timespec now{};
        if (!was_pending_)
            while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
            }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    NoPipeSignal(const NoPipeSignal&) = delete;
    NoPipeSignal& operator=(const NoPipeSignal&) = delete;

private:
    sigset_t pipe_, before_;
    bool was_pending_;
};

// Size of the segments that a ring passes on. Larger segments leave a slow wire idle while the first one
// arrives and the last one leaves; smaller ones cost a fast wire more calls.
constexpr std::size_t segment_bytes = 256 << 10;

class Engine final : public Collectives {
public:
    Engine(KeyValues& values, const GlooOptions& options)
        : context_(*new std::shared_ptr<gloo::rendezvous::Context>(
              std::make_shared<gloo::rendezvous::Context>(options.place.rank, options.place.size))),
          timeout_(options.timeout) {
        const NoPipeSignal no_signal;  // also for the thread that Gloo starts here
        gloo::transport::tcp::attr attributes;
        if (options.interface.empty())
            attributes.hostname = options.address;
        else
            attributes.iface = options.interface;
        auto device = gloo::transport::tcp::CreateDevice(attributes);
        Store store(values);
        context_->setTimeout(milliseconds(options.connect_timeout));
        context_->connectFullMesh(store, device);
        // No rank goes on before all are connected: a rank that left at once would look like a failure to
        // ranks that are still connecting.
        const char here = 0;
        std::vector<char> all(size());
        all_gather(&here, all.data(), 1);
        context_->setTimeout(milliseconds(timeout_));
    }

    void all_reduce(void* data, std::int64_t count, Dtype dtype, ReduceOp op) override {
        with_reduced_type(dtype, op, [&]<class T>(T) { reduce_all(static_cast<T*>(data), count, op); });
    }

    void all_gather(const void* mine, void* all, std::size_t bytes) override {
        gloo::AllgatherOptions options(context_);
        Memory in = memory(const_cast<void*>(mine), bytes), out = memory(all, bytes * size());
        const Buffers used{in.get(), out.get()};
        options.setInput<char>(std::move(in));
        options.setOutput<char>(std::move(out));
        perform(options, gloo::allgather, used);
    }

    void all_to_all(const void* sent, void* received, std::size_t bytes) override {
        gloo::AlltoallOptions options(context_);
        Memory in = memory(const_cast<void*>(sent), bytes * size()), out = memory(received, bytes * size());
        const Buffers used{in.get(), out.get()};
        options.setInput<char>(std::move(in));
        options.setOutput<char>(std::move(out));
        perform(options, gloo::alltoall, used);
    }

    void broadcast(void* data, std::size_t bytes, int root) override {
        gloo::BroadcastOptions options(context_);
        Memory out = memory(data, bytes);
        const Buffers used{out.get()};
        options.setOutput<char>(std::move(out));
        options.setRoot(root);
        perform(options, gloo::broadcast, used);
    }

    const char* name() const override { return "Gloo"; }

    // Closing connections does not wake threads that wait on this side. A wait that times out does: it ends
    // all operations of the context with an exception, and closes all connections.
    void abort() noexcept override {
        if (aborted_.exchange(true)) return;
        const NoPipeSignal no_signal;
        for (int rank = 0; rank < context_->size; ++rank) {
            if (rank == context_->rank) continue;
            try {
                char byte = 0;
                const auto buffer = context_->createUnboundBuffer(&byte, 1);
                buffer->recv(rank, gloo::Slot::build(unused_prefix, 0));
                buffer->waitRecv(std::chrono::milliseconds(1));
            } catch (const std::exception&) {  // expected; or the connection is already closed
            }
        }
        try {
            context_->closeConnections();
        } catch (const std::exception&) {  // already closed
        }
        wake_the_forgotten();
    }

private:
    using Memory = std::unique_ptr<gloo::transport::UnboundBuffer>;
    using Buffers = std::vector<gloo::transport::UnboundBuffer*>;

    // Registers the buffers of the running operation.
    class InUse {
    public:
        InUse(Engine& engine, const Buffers& buffers) : engine_(engine) {
            const std::lock_guard lock(engine_.mutex_);
            engine_.in_use_ = buffers;
            engine_.woken_ = false;
        }
        ~InUse() {
            const std::lock_guard lock(engine_.mutex_);
            engine_.in_use_.clear();
            engine_.unused_.notify_all();
        }
        InUse(const InUse&) = delete;
        InUse& operator=(const InUse&) = delete;

    private:
        Engine& engine_;
    };

    std::size_t size() const { return std::size_t(context_->size); }
    Memory memory(void* data, std::size_t bytes) const { return context_->createUnboundBuffer(data, bytes); }

    // If a connection ends while Gloo's thread begins to send on it, Gloo loses the message: the thread that
    // waits for it gets no exception, and would wait for the whole timeout. Each wake ends one wait.
    void wake_the_forgotten() noexcept {
        const Clock::time_point end = Clock::now() + longest_wake;
        std::unique_lock lock(mutex_);
        while (!in_use_.empty() && Clock::now() < end) {
            woken_ = true;
            for (gloo::transport::UnboundBuffer* const buffer : in_use_) {
                buffer->abortWaitSend();
                buffer->abortWaitRecv();
            }
            unused_.wait_for(lock, std::chrono::milliseconds(10));
        }
    }

    // Throws after an operation that was woken, whose data may be incomplete.
    void require_whole() {
        const std::lock_guard lock(mutex_);
        if (woken_) throw std::runtime_error("the group is broken");
    }

    template <class T> void reduce_all(T* data, std::int64_t count, ReduceOp op) {
        gloo::AllreduceOptions options(context_);
        Memory out = memory(data, std::size_t(count) * sizeof(T));
        const Buffers used{out.get()};
        options.setOutput<T>(std::move(out));
        options.setReduceFunction(reduction_of<T>(op));
        options.setMaxSegmentSize(segment_bytes);
        perform(options, gloo::allreduce, used);
        if (op == ReduceOp::mean) {
            const T factor = T(1) / T(context_->size);
            for (std::int64_t i = 0; i < count; ++i) data[i] *= factor;
        }
    }

    // After an exception the context cannot be used; its connections are closed, so that the other ranks
    // notice.
    template <class Options, class Operation>
    void perform(Options& options, Operation* operation, const Buffers& buffers) {
        const NoPipeSignal no_signal;
        options.setTag(tag_++);
        const Clock::time_point begin = Clock::now();
        try {
            const InUse scope(*this, buffers);
            if (aborted_) throw std::runtime_error("the group is broken");
            operation(options);
            require_whole();
        } catch (const std::exception& error) {
            abort();
            const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
            if (waited < 0.98 * timeout_) throw std::runtime_error(std::string("Gloo: ") + error.what());
            throw no_answer_within(timeout_);
        }
    }

    // Never destroyed: that would reset connections that others may still read from. The exit of the process
    // closes them in order.
    const std::shared_ptr<gloo::rendezvous::Context>& context_;
    const double timeout_;
    std::uint32_t tag_ = 0;
    std::atomic<bool> aborted_{false};
    std::mutex mutex_;
    std::condition_variable unused_;
    Buffers in_use_;
    bool woken_ = false;  // the running operation has been woken
};

}  // namespace
}  // namespace mezzo::distributed

extern "C" {
__attribute__((visibility("default"))) extern const char mezzo_gloo_version[];
const char mezzo_gloo_version[] = MEZZO_GLOO_VERSION;

__attribute__((visibility("default"))) mezzo::distributed::Collectives* mezzo_gloo_connect(
    mezzo::distributed::KeyValues& store, const mezzo::distributed::GlooOptions& options) {
    return new mezzo::distributed::Engine(store, options);
}
}
