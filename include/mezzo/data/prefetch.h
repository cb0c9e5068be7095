// prefetch(): copies batches to a device while it works on the batch before.
//
//   for (const auto& [x, y] : data::prefetch(loader, {.device = best_device()})) {
//       loss = cross_entropy(net(x), y);
//   }
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <iterator>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/device.h"
#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// Value of PrefetchOptions::ahead: two batches on a device that has passed the self-check of such copies
// (mezzo/fast_path.h), else none.
inline constexpr int automatic_prefetch = -1;

struct PrefetchOptions {
    Device device = best_device();
    // Number of batches that are copied while one is in use; 0: copies on demand. An explicit number skips
    // the self-check.
    int ahead = automatic_prefetch;
};

// Calls f with each tensor of a batch. A user's batch type needs such a function in its namespace. Items of a
// std::vector that have none, such as strings, stay as they are.
template <class T, class F> void each_tensor(std::vector<T>& batch, F&& f);
template <class A, class B, class F> void each_tensor(std::pair<A, B>& batch, F&& f);
template <class... T, class F> void each_tensor(std::tuple<T...>& batch, F&& f);
template <class F> void each_tensor(Tensor& batch, F&& f) { f(batch); }
template <class F> void each_tensor(Tensors& batch, F&& f) {
    for (Tensor& x : batch) f(x);
}
template <class T, class F> void each_tensor(std::vector<T>& batch, F&& f) {
    if constexpr (requires(T & item) { each_tensor(item, f); })
        for (T& item : batch) each_tensor(item, f);
}
template <class A, class B, class F> void each_tensor(std::pair<A, B>& batch, F&& f) {
    each_tensor(batch.first, f);
    each_tensor(batch.second, f);
}
template <class... T, class F> void each_tensor(std::tuple<T...>& batch, F&& f) {
    std::apply([&](T&... parts) { (each_tensor(parts, f), ...); }, batch);
}

namespace detail {

struct [[gnu::visibility("hidden")]] TransferQueue;

// Batches whose tensors are being copied to a device, oldest first.
class Transfers {
public:
    // For at most `ahead` batches, or automatic_prefetch. Throws Error(value) if ahead is less, Error(device)
    // if the device does not exist.
    Transfers(Device device, int ahead);
    ~Transfers();
    Transfers(Transfers&& other) noexcept : queue_(std::exchange(other.queue_, nullptr)) {}
    Transfers& operator=(Transfers&& other) & noexcept {
        std::swap(queue_, other.queue_);
        return *this;
    }

    // Largest number of batches: 0 if the device uses the host's memory, or cannot copy asynchronously.
    [[nodiscard]] int capacity() const;
    // Replaces CPU tensors by tensors on the device, and starts to copy their values. Returns false and does
    // nothing if memory is lacking or a step is being captured.
    bool start(std::span<Tensor* const> batch);
    // Makes the device's queue wait for the copies of the oldest batch: work that is queued later reads its
    // values.
    void finish();

private:
    TransferQueue* queue_;
};

// x on the device, without history.
[[nodiscard]] Tensor arrived(const Tensor& x, Device device);

template <class T> inline constexpr bool has_weight = requires(const T& loader) { double(loader.weight()); };
template <class T> inline constexpr bool has_position = requires(const T& loader) { loader.position(); };

// The weight and position of a loader after it has returned a batch; 1 and 0 of a range without them.
template <class Loader> double weight_of(const Loader& loader) {
    if constexpr (has_weight<Loader>)
        return double(loader.weight());
    else
        return 1;
}
template <class Loader> auto position_of(const Loader& loader) {
    if constexpr (has_position<Loader>)
        return loader.position();
    else
        return 0;
}

// The same of the batch that a PrefetchIterator has returned; without a position at the end of the range.
struct NoLoader {};
template <class Loader> struct PrefetchProgress : mezzo::detail::SharedObject {
    using Position = decltype(position_of(std::declval<const Loader&>()));
    explicit PrefetchProgress(const Loader& l) : loader(l) {}
    const Loader& loader;
    double weight = 1;
    std::optional<Position> position = {};
};

}  // namespace detail

// Iterator over [first, last) that starts copies ahead. A batch is returned after the device's queue waits
// for its copies, so that no work reads it half copied.
template <class Source, class Sentinel, class Loader = detail::NoLoader> class PrefetchIterator {
    using Progress = mezzo::detail::SharedHandle<detail::PrefetchProgress<Loader>>;

public:
    using value_type = std::remove_cvref_t<decltype(*std::declval<Source&>())>;

    PrefetchIterator(Source first, Sentinel last, const PrefetchOptions& options,
                     const std::optional<Progress>& progress = {})
        : device_(options.device),
          next_(std::move(first)),
          last_(std::move(last)),
          progress_(progress),
          transfers_(options.device, options.ahead) {}

    // The batch on the device. Throws the exception that the source has thrown for it.
    value_type operator*() {
        if (batches_.empty()) {
            if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
            load();
        }
        arrive(batches_.front());
        look_ahead();
        if (progress_) {
            (*progress_)->weight = batches_.front().weight;
            (*progress_)->position = batches_.front().position;
        }
        return batches_.front().value;
    }
    PrefetchIterator& operator++() {
        if (batches_.empty()) return skip();
        if (batches_.front().place == CopyState::under_way) transfers_.finish();
        batches_.pop_front();
        if (batches_.empty() && !error_) advance();
        if (progress_ && *this == std::default_sentinel) (*progress_)->position.reset();
        return *this;
    }
    friend bool operator==(const PrefetchIterator& it, std::default_sentinel_t) {
        return it.batches_.empty() && !it.error_ && !(it.next_ != it.last_);
    }

private:
    enum class CopyState { source, under_way, device };
    struct Loaded {
        value_type value;
        CopyState place = CopyState::source;
        double weight = 1;
        typename detail::PrefetchProgress<Loader>::Position position = {};
    };

    void load() {
        batches_.push_back({*next_});
        taken_ = true;
        if (!progress_) return;
        batches_.back().weight = detail::weight_of((*progress_)->loader);
        batches_.back().position = detail::position_of((*progress_)->loader);
    }
    // Skips a batch that was not read, or that the source could not make.
    PrefetchIterator& skip() {
        error_ = nullptr;
        advance();
        ++next_;
        return *this;
    }
    void advance() {
        if (taken_) ++next_;
        taken_ = false;
    }
    void arrive(Loaded& batch) {
        if (batch.place == CopyState::under_way) transfers_.finish();
        if (batch.place == CopyState::source)
            each_tensor(batch.value, [&](Tensor& x) { x = detail::arrived(x, device_); });
        batch.place = CopyState::device;
    }
    void look_ahead() {
        while (!error_ && batches_.size() <= static_cast<std::size_t>(transfers_.capacity())) {
            try {
                advance();
                if (!(next_ != last_)) return;
                load();
            } catch (...) {
                error_ = std::current_exception();  // rethrown when that batch is read
                return;
            }
            if (!start(batches_.back())) return;
        }
    }
    bool start(Loaded& batch) {
        std::vector<Tensor*> tensors;
        each_tensor(batch.value, [&](Tensor& x) { tensors.push_back(&x); });
        if (!transfers_.start(tensors)) return false;  // copied when it is read
        batch.place = CopyState::under_way;
        return true;
    }

    Device device_;
    Source next_;
    Sentinel last_;
    std::optional<Progress> progress_;
    bool taken_ = false;          // the batch at next_ is in batches_, or has been
    std::deque<Loaded> batches_;  // the one in use and those ahead
    std::exception_ptr error_;    // of the source, behind all of batches_
    detail::Transfers transfers_;
};

// The result of prefetch().
template <class Batches> class Prefetcher {
    using Loader = std::remove_cvref_t<Batches>;
    using Progress = mezzo::detail::SharedHandle<detail::PrefetchProgress<Loader>>;

public:
    Prefetcher(Batches&& batches, const PrefetchOptions& options)
        : batches_(std::forward<Batches>(batches)), options_(options) {}
    // The iterator must not outlive this object.
    auto begin() {
        progress_.emplace(new detail::PrefetchProgress<Loader>(batches_));
        auto first = std::begin(batches_);
        auto last = std::end(batches_);
        return PrefetchIterator<decltype(first), decltype(last), Loader>(std::move(first), std::move(last),
                                                                         options_, progress_);
    }
    std::default_sentinel_t end() const { return {}; }

    // Those of the loader after the batch that was returned last: its own are those of a batch ahead.
    [[nodiscard]] double weight() const requires(detail::has_weight<Loader>) {
        return progress_ ? (*progress_)->weight : batches_.weight();
    }
    [[nodiscard]] auto position() const requires(detail::has_position<Loader>) {
        return progress_ && (*progress_)->position ? *(*progress_)->position : batches_.position();
    }

private:
    Batches batches_;  // a reference, if it was given a variable
    PrefetchOptions options_;
    std::optional<Progress> progress_;  // of the iterator begun last
};

// Returns the batches of any range on the device: for (const auto& batch : prefetch(batches, {.device =
// gpu})). While a batch is in use, the calling thread assembles the next ones and starts their copies, from
// pinned memory and on a separate stream, without waiting for them. The host waits for a free pinned buffer
// only if it is more than ahead + 2 steps ahead of the device.
//  - Values, their order and exceptions are the same as without it. A batch is not overwritten while it is in
//    use. Only random numbers that the range itself draws from the common stream are drawn earlier.
//  - weight() and position() of a loader are ahead, too: those of the result are of the batch in use.
//  - Tensors are detached; those on a device already stay there. On the CPU nothing is prefetched.
//  - The device holds `ahead` more batches. If there is no memory for them, they are copied when they are
//    read.
//  - Pinned memory is cached: for each device about ahead + 3 batches, sizes rounded to powers of two.
//  - Not inside a captured step: its batch is an input of the step.
// begin() throws Error(value) for an `ahead` below automatic_prefetch, and Error(device) for a device that
// does not exist. "What has run on a GPU" in docs/internals/cuda.md has more.
template <class Batches>
[[nodiscard]] Prefetcher<Batches> prefetch(Batches&& batches, const PrefetchOptions& options = {}) {
    return Prefetcher<Batches>(std::forward<Batches>(batches), options);
}

}  // namespace mezzo::data

#pragma GCC visibility pop
