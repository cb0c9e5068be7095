// Collective operations by NCCL on the device's communication stream, and the thread that monitors them.
#include "cuda/nccl/nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/step_recorder.h"
#include "cuda/nccl/nccl_communicator.h"
#include "cuda/reduce/ordered_mean.h"
#include "cuda/runtime/device_id.h"
#include "cuda/runtime/on_device.h"
#include "mezzo/error.h"

namespace mezzo::cuda::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto between_looks = std::chrono::milliseconds(20);
constexpr auto longest_finish = std::chrono::milliseconds(2000);
constexpr auto longest_abort = std::chrono::seconds(10);  // nccl#1013: it may hang

Type type_of(Dtype dtype) {
    if (dtype == uint8) return type_uint8;
    if (dtype == int64) return type_int64;
    if (dtype == float32) return type_float32;
    check(dtype == float64, ErrorKind::dtype, "NCCL: all_reduce: no ", dtype);
    return type_float64;
}

// The mean multiplies before it adds, which is harmless in these dtypes. In 16 bits it would multiply by 1 /
// ranks as rounded to 16 bits.
Reduction reduction_of(DeviceReduction op) {
    constexpr Reduction all[] = {reduce_sum, reduce_average, reduce_min, reduce_max};
    return all[int(op)];
}

class Collectives final : public DeviceCollectives {
public:
    Collectives(std::shared_ptr<CommunicatorHandle> handle, const DeviceCollectivesOptions& options)
        : options_(options), f_(functions()), handle_(std::move(handle)) {
        options_.give_up = nullptr;
        const OnDevice scope(options_.device);
        watched_ = std::make_unique<Marker>();
        latest_ = std::make_unique<Marker>();
        watcher_ = std::thread([this] { watch(); });
    }

    ~Collectives() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
        watcher_.join();
        end_quietly();
    }

    void all_reduce(void* data, std::int64_t count, Dtype dtype, DeviceReduction op) override {
        queue("all_reduce", [&](Communicator c, void* stream) {
            return f_.all_reduce(data, data, std::size_t(count), type_of(dtype), reduction_of(op), c, stream);
        });
    }

    void all_gather(const void* mine, void* all, std::size_t bytes) override {
        queue("all_gather", [&](Communicator c, void* stream) {
            return f_.all_gather(mine, all, bytes, type_uint8, c, stream);
        });
    }

    void broadcast(void* data, std::size_t bytes, int root) override {
        queue("broadcast", [&](Communicator c, void* stream) {
            return f_.broadcast(data, data, bytes, type_uint8, root, c, stream);
        });
    }

    void ordered_mean(void* data, std::int64_t count, Dtype dtype, Dtype wire, void* scratch) override {
        if (count == 0) return;
        const OnDevice scope(options_.device);
        const float share = float(1.0 / options_.size);
        const bool same = dtype == wire;
        const std::int64_t piece = count / options_.size;
        const std::size_t bytes = std::size_t(piece) * size_of(wire),
                          whole = bytes * std::size_t(options_.size);
        char* const received = static_cast<char*>(scratch);
        void* const sent = same ? data : received + whole;
        void* const mine = received + 2 * whole;
        if (!same) beside([&] { pack_shares(data, sent, count, wire, share); });
        all_to_all(sent, received, bytes);
        beside([&] { add_pieces(received, options_.size, mine, piece, wire, same ? share : 1.0f); });
        all_gather(mine, sent, bytes);
        if (!same) beside([&] { widen(sent, data, count, wire); });
        note_queued(StreamKind::communication);
    }

    void watch_compute() override {
        const OnDevice scope(options_.device);
        note_queued(StreamKind::compute);
    }
    void finish() noexcept override {
        try {
            const OnDevice scope(options_.device);
            Marker operations, others;
            operations.record(StreamKind::communication);
            others.record(StreamKind::compute);  // of graphs, too
            operations.wait();
            others.wait();
        } catch (const std::exception&) {  // of a capture, or of a device that is lost
        }
    }
    void abort() noexcept override { handle_->abort(); }
    bool alive() const override { return !handle_->aborted(); }

private:
    template <class F> void queue(const char* name, const F& operation) {
        const OnDevice scope(options_.device);
        const OnCommunicationStream queued;
        void* const stream = current_stream();
        handle_->call(name, [&](Communicator c) { return operation(c, stream); });
        note_queued(StreamKind::communication);
    }

    template <class F> static void beside(const F& kernel) {
        const OnCommunicationStream stream;
        kernel();
    }

    void all_to_all(const void* sent, void* received, std::size_t bytes) {
        queue("all_to_all", [&](Communicator c, void* stream) {
            int first = f_.group_start();
            const auto keep = [&](int result) {
                if (first == success || first == in_progress) first = result;
            };
            for (int rank = 0; rank < options_.size; ++rank) {
                const std::size_t at = std::size_t(rank) * bytes;
                keep(f_.send(static_cast<const char*>(sent) + at, bytes, type_uint8, rank, c, stream));
                keep(f_.receive(static_cast<char*>(received) + at, bytes, type_uint8, rank, c, stream));
            }
            const int ended = f_.group_end();  // also after an error
            return first == success || first == in_progress ? ended : first;
        });
    }

    // One point at a time is watched; once it has passed, the latest there is by then.
    void note_queued(StreamKind stream) {
        if (thread_state.recorder != nullptr) return;
        {
            const std::lock_guard lock(mutex_);
            more_ = watching_;
            (watching_ ? latest_ : watched_)->record(stream);
            if (watching_) return;
            since_ = Clock::now();
            watching_ = true;
        }
        changed_.notify_all();
    }

    void watch() {
        std::unique_lock lock(mutex_);
        while (!stopping_) {
            changed_.wait(lock, [&] { return stopping_ || watching_; });
            if (changed_.wait_for(lock, between_looks, [&] { return stopping_; })) return;
            const auto [words, timed_out] = look();
            if (words.empty()) continue;
            lock.unlock();
            if (options_.failed) options_.failed(words, timed_out);
            return;
        }
    }

    // Requires the mutex.
    std::pair<std::string, bool> look() noexcept {
        try {
            const OnDevice scope(options_.device);
            if (handle_->aborted()) return {};
            if (const std::string words = handle_->async_error(); !words.empty()) return {words, false};
            if (watched_->passed()) {
                watching_ = std::exchange(more_, false);
                watched_.swap(latest_);
                since_ = Clock::now();
                return {};
            }
        } catch (const std::exception& error) {
            return {error.what(), false};
        }
        const double waited = std::chrono::duration<double>(Clock::now() - since_).count();
        if (waited < options_.timeout) return {};
        return {"NCCL: an operation did not come to its end within " + seconds_text(), true};
    }

    std::string seconds_text() const {
        std::string text = std::to_string(options_.timeout);  // six decimals
        text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') text.pop_back();
        return text + " s";
    }

    // Waits for no other rank: what others have still to come to is aborted.
    void end_quietly() noexcept {
        try {
            const OnDevice scope(options_.device);
            const bool idle = !watching_ || (watched_->passed() && (!more_ || latest_->passed()));
            if (!handle_->aborted() && idle) handle_->finish(longest_finish);
            watched_.reset();
            latest_.reset();
        } catch (const std::exception&) {  // the device is lost
        }
        if (!handle_->aborted()) handle_->abort();
        handle_->await_end(longest_abort);
    }

    DeviceCollectivesOptions options_;
    const Functions& f_;
    const std::shared_ptr<CommunicatorHandle> handle_;
    std::mutex mutex_;  // of the watching
    std::condition_variable changed_;
    std::unique_ptr<Marker> watched_, latest_;
    Clock::time_point since_;
    bool watching_ = false, more_ = false, stopping_ = false;
    std::thread watcher_;
};

class Passage final : public DevicePassage {
public:
    explicit Passage(int device) : device_(device) {}
    void ready() override {
        const OnDevice scope(device_);
        ready_.record(StreamKind::compute);
    }
    void begin() override {
        const OnDevice scope(device_);
        ready_.hold(StreamKind::communication);
    }
    void end() override {
        const OnDevice scope(device_);
        done_.record(StreamKind::communication);
    }
    void receive() override {
        const OnDevice scope(device_);
        done_.hold(StreamKind::compute);
    }

private:
    const int device_;
    Marker ready_{Marker::Use::in_graphs}, done_{Marker::Use::in_graphs};
};

std::unique_ptr<DevicePassage> make_passage(int device) {
    const OnDevice scope(device);
    return std::make_unique<Passage>(device);
}

const char* asked_for() {
    const char* const value = std::getenv("MEZZO_NCCL");
    return value != nullptr ? value : "";
}
bool refused() { return std::strcmp(asked_for(), "off") == 0; }
bool wanted() { return *asked_for() != 0 && !refused(); }

std::string open() {
    int version = 0;
    const int result = functions().get_version(&version);
    check(result == success, ErrorKind::backend, "NCCL: ncclGetVersion: ", functions().error_string(result));
    check(version >= oldest_version, ErrorKind::backend, "NCCL ", version_text(version),
          " is too old; mezzo needs version ", version_text(oldest_version), " or newer");
    return "NCCL " + version_text(version);
}

std::string new_id() {
    UniqueId id{};
    const int result = functions().get_unique_id(&id);
    check(result == success, ErrorKind::backend, "NCCL: ncclGetUniqueId: ", functions().error_string(result));
    return std::string(id.bytes, sizeof id.bytes);
}

std::shared_ptr<DeviceCollectives> connect(const DeviceCollectivesOptions& options) {
    auto handle = std::make_shared<CommunicatorHandle>(options.device);
    try {
        handle->connect(options);
        return std::make_shared<Collectives>(handle, options);
    } catch (...) {
        handle->abort();
        throw;
    }
}

}  // namespace

const DeviceCollectivesLibrary library{open, refused, wanted, device_id, new_id, connect, make_passage};

}  // namespace mezzo::cuda::nccl
