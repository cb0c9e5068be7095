// Batches of any type from samples of any type: data sets that are asked by index, streams that are read one sample after
// the other, a function that makes a batch of samples, and worker threads for both.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/batch_queue.h"
#include "mezzo/error.h"
#include "mezzo/sampler.h"
#include "mezzo/shard.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// size() and get(index), which returns a sample of any type. get() is called from several threads at once.
template <class D>
concept MapDataset = requires(const D& dataset, std::int64_t i) {
    { dataset.size() } -> std::convertible_to<std::int64_t>;
    dataset.get(i);
};

// stream(epoch) begins an epoch: an object whose next() returns a std::optional of a sample, none at the end, and is not called
// after that. It is read by one thread at a time. For a training that is to be resumed it must give the same samples in the same order again.
template <class D>
concept StreamDataset = requires(const D& dataset, std::int64_t epoch) {
    *dataset.stream(epoch).next();
    static_cast<bool>(dataset.stream(epoch).next());
};

template <class D>
concept BatchDataset = MapDataset<D> || StreamDataset<D>;

struct BatchLoaderOptions {
    std::int64_t batch_size = 64;
    bool shuffle = false;    // a new order each epoch, fixed by seed and the epoch's number; not of streams
    bool drop_last = false;  // leave out the last batch when it is smaller
    std::uint64_t seed = 0;
    std::optional<Sampler> sampler = {};  // in place of `shuffle`; not of streams
    // Threads that read samples and make batches ahead, at most num_workers * prefetch_factor; 0: the calling thread. The
    // batches, and what they throw, are the same if get(), next() and the function that makes batches leave the stream of
    // manual_seed() alone: workers run ahead of the training, which draws from it too. They run outside of autocast.
    int num_workers = 0;
    int prefetch_factor = 2;
};

namespace detail {

// Throws Error(value).
void check_options(const BatchLoaderOptions& options, bool stream);
void check_position(const LoaderPosition& position, std::int64_t samples);  // samples below 0: not known
// The indices of an epoch's samples, int64 on the CPU.
Tensor order_of(const BatchLoaderOptions& options, std::int64_t samples, std::int64_t epoch);

template <class Batch> struct Made {
    Batch batch;
    std::int64_t samples;
};

template <class Dataset, class Collate> struct MapTypes {
    using Sample = std::decay_t<decltype(std::declval<const Dataset&>().get(0))>;
    using Batch = std::decay_t<std::invoke_result_t<const Collate&, std::vector<Sample>>>;
};
template <class Dataset, class Collate> struct StreamTypes {
    using Stream = std::decay_t<decltype(std::declval<const Dataset&>().stream(0))>;
    using Sample = std::decay_t<decltype(*std::declval<Stream&>().next())>;
    using Batch = std::decay_t<std::invoke_result_t<const Collate&, std::vector<Sample>>>;
};

template <class Dataset, class Collate> struct MapSource final : BatchSource {
    using Types = MapTypes<Dataset, Collate>;
    using Indices = Box<std::vector<std::int64_t>>;
    MapSource(const Dataset& d, const Collate& c, std::vector<std::int64_t> o, std::int64_t from,
              const BatchLoaderOptions& options)
        : dataset(d),
          collate(c),
          order(std::move(o)),
          next(from),
          size(options.batch_size),
          drop_last(options.drop_last) {}
    SharedObject* claim() override {
        const std::int64_t count = std::min(size, std::int64_t(order.size()) - next);
        if (count <= 0 || (drop_last && count < size)) return nullptr;
        const auto first = order.begin() + next;
        next += count;
        return new Indices({first, first + count});
    }
    SharedObject* make(SharedObject& claimed) const override {
        const auto& indices = static_cast<Indices&>(claimed).value;
        std::vector<typename Types::Sample> samples;
        samples.reserve(indices.size());
        for (const std::int64_t index : indices) samples.push_back(dataset.get(index));
        return new Box<Made<typename Types::Batch>>(
            {collate(std::move(samples)), std::int64_t(indices.size())});
    }
    const Dataset& dataset;
    const Collate& collate;
    std::vector<std::int64_t> order;
    std::int64_t next, size;
    bool drop_last;
};

template <class Dataset, class Collate> struct StreamSource final : BatchSource {
    using Types = StreamTypes<Dataset, Collate>;
    using Samples = std::vector<typename Types::Sample>;
    StreamSource(const Dataset& dataset, const Collate& c, const LoaderPosition& from,
                 const BatchLoaderOptions& options)
        : collate(c),
          stream(dataset.stream(from.epoch)),
          skip(from.samples),
          size(options.batch_size),
          drop_last(options.drop_last) {}
    SharedObject* claim() override {
        for (; skip > 0 && !ended; --skip) ended = !stream.next();
        Samples samples;
        while (!ended && std::int64_t(samples.size()) < size) {
            auto sample = stream.next();
            if (sample) samples.push_back(std::move(*sample));
            ended = !sample;
        }
        if (samples.empty() || (drop_last && std::int64_t(samples.size()) < size)) return nullptr;
        return new Box<Samples>(std::move(samples));
    }
    SharedObject* make(SharedObject& claimed) const override {
        Samples& samples = static_cast<Box<Samples>&>(claimed).value;
        const auto count = std::int64_t(samples.size());
        return new Box<Made<typename Types::Batch>>({collate(std::move(samples)), count});
    }
    const Collate& collate;
    typename Types::Stream stream;
    std::int64_t skip, size;
    bool drop_last, ended = false;  // next() is not called again
};

}  // namespace detail

// for (auto& batch : loader) runs one epoch; the next such loop is the next epoch. collate(std::vector<Sample>) makes a
// batch of any type; it is called from several threads at once. data::prefetch(loader) copies the batches to a device ahead.
//
//     data::BatchLoader loader(texts, [](std::vector<Text> samples) { return pad(samples); }, {.num_workers = 2});
//
// Batches are a function of the options, the epoch and the position alone: a run that is resumed by set_position() gets
// exactly the samples that are left. A stream is read up to there again.
template <BatchDataset Dataset, class Collate> class BatchLoader {
    static constexpr bool is_map = MapDataset<Dataset>;
    using Types =
        typename std::conditional_t<is_map, std::type_identity<detail::MapTypes<Dataset, Collate>>,
                                    std::type_identity<detail::StreamTypes<Dataset, Collate>>>::type;

public:
    using Batch = typename Types::Batch;

    // Throws Error(value) for a batch_size or prefetch_factor below 1, num_workers outside of [0, 1024], shuffle together
    // with a sampler, and either of them for a stream.
    BatchLoader(Dataset dataset, Collate collate, const BatchLoaderOptions& options = {})
        : dataset_(std::move(dataset)), collate_(std::move(collate)), options_(options) {
        detail::check_options(options_, !is_map);
    }
    BatchLoader(const BatchLoader&) = delete;  // batches that are being made refer to it
    BatchLoader& operator=(const BatchLoader&) = delete;

    // Batches per epoch; of a stream nobody knows.
    [[nodiscard]] std::int64_t size() const requires is_map {
        const std::int64_t n = samples(), b = options_.batch_size;
        return options_.drop_last ? n / b : n / b + (n % b != 0);
    }
    [[nodiscard]] const Dataset& dataset() const { return dataset_; }
    // Behind the batch that was handed out last, in samples. Beyond the last batch: the start of the next epoch.
    [[nodiscard]] LoaderPosition position() const { return position_; }
    // Where the next loop begins. Error(value) for a position that is negative or, if the size is known, beyond the end.
    void set_position(const LoaderPosition& position) {
        detail::check_position(position, samples());
        next_ = position_ = position;
    }

    // What makes a batch throws when the batch is next: here, and in begin().
    class Iterator {
    public:
        using value_type = Batch;
        Batch& operator*() {
            loader_->position_ = {.epoch = epoch_, .samples = before_ + current().samples};
            return current().batch;
        }
        Iterator& operator++() {
            before_ += current().samples;
            current_.reset();
            take();
            return *this;
        }
        friend bool operator==(const Iterator& it, std::default_sentinel_t) { return !it.current_; }

    private:
        friend class BatchLoader;
        Iterator(BatchLoader* loader, detail::BatchSource* source, const LoaderPosition& from)
            : loader_(loader), epoch_(from.epoch), before_(from.samples) {
            const BatchLoaderOptions& o = loader->options_;
            const std::int64_t ahead = std::int64_t(o.num_workers) * o.prefetch_factor;
            queue_.emplace(new detail::BatchQueue(source, o.num_workers, ahead > 0 ? ahead : 1));
            take();
        }
        using Box = detail::Box<detail::Made<Batch>>;
        detail::Made<Batch>& current() { return (*current_)->value; }
        void take() {
            if (detail::SharedObject* const made = (*queue_)->take(index_++))
                current_.emplace(static_cast<Box*>(made));
            else
                loader_->position_ = {.epoch = epoch_ + 1};
        }
        BatchLoader* loader_;
        std::int64_t epoch_, before_, index_ = 0;
        std::optional<mezzo::detail::SharedHandle<detail::BatchQueue>> queue_;
        std::optional<mezzo::detail::SharedHandle<Box>> current_;
    };
    Iterator begin() {
        const LoaderPosition from = std::exchange(next_, LoaderPosition{.epoch = next_.epoch + 1});
        position_ = from;
        return Iterator(this, source(from), from);
    }
    std::default_sentinel_t end() const { return {}; }

private:
    [[nodiscard]] std::int64_t samples() const {
        if constexpr (is_map) return options_.sampler ? options_.sampler->size() : dataset_.size();
        return -1;
    }
    detail::BatchSource* source(const LoaderPosition& from) {
        if constexpr (is_map) {
            const Tensor order = detail::order_of(options_, dataset_.size(), from.epoch);
            return new detail::MapSource<Dataset, Collate>(
                dataset_, collate_, order.template to_vector<std::int64_t>(), from.samples, options_);
        } else {
            return new detail::StreamSource<Dataset, Collate>(dataset_, collate_, from, options_);
        }
    }
    Dataset dataset_;
    Collate collate_;
    BatchLoaderOptions options_;
    LoaderPosition next_, position_;
};

}  // namespace mezzo::data

#pragma GCC visibility pop
