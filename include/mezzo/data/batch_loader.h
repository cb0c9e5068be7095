// BatchLoader: makes batches of any type from samples of any type. Samples come from a data set with an index
// or from a stream; a collate function makes a batch of them, on worker threads if wanted.
//
//   data::BatchLoader loader(
//       texts, [](std::vector<data::Encoding> samples) { return data::pad(samples); },
//       {.batch_size = 32, .shuffle = true, .num_workers = 2});
//   for (const data::TokenBatch& batch : loader) y = gpt(batch.input_ids);
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/data/batch_queue.h"
#include "mezzo/data/collate.h"
#include "mezzo/data/sampler.h"
#include "mezzo/error.h"
#include "mezzo/shard.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// A data set with size() and get(index), which returns a sample of any type. get() is called from several
// threads at once.
template <class D>
concept MapDataset = requires(const D& dataset, std::int64_t i) {
    { dataset.size() } -> std::convertible_to<std::int64_t>;
    dataset.get(i);
};

// A data set that is read in order: stream(epoch) returns an object whose next() returns a std::optional of a
// sample, none at the end, and is not called after that. One thread at a time reads a stream. If the training
// is to be resumed, an epoch's stream must always give the same samples in the same order.
template <class D>
concept StreamDataset = requires(const D& dataset, std::int64_t epoch) {
    *dataset.stream(epoch).next();
    static_cast<bool>(dataset.stream(epoch).next());
};

template <class D>
concept BatchDataset = MapDataset<D> || StreamDataset<D>;

struct BatchLoaderOptions {
    std::int64_t batch_size = 64;  // over all ranks
    bool shuffle = false;          // a new order each epoch, fixed by seed and epoch; not for streams
    bool drop_last = false;        // leave out the last batch when it is smaller
    std::uint64_t seed = 0;
    std::optional<Sampler> sampler = {};  // instead of `shuffle`; not for streams
    // This rank's samples of every batch, as in DataLoaderOptions; collate gets these. Each rank reads the
    // whole stream. A stream that reads the samples of one rank only takes no shard here.
    Shard shard = {};
    // Number of threads that read samples and make batches, at most num_workers * prefetch_factor batches
    // ahead; 0: the calling thread makes them. Batches and exceptions are the same in both cases if get(),
    // next() and the collate function do not draw from the stream of manual_seed(): workers run ahead of the
    // training, which draws from it, too. Workers run outside of autocast.
    int num_workers = 0;
    int prefetch_factor = 2;
};

namespace detail {

// Throws Error(value).
void check_options(const BatchLoaderOptions& options, bool stream);
void check_position(const LoaderPosition& position, std::int64_t samples);  // samples below 0: not known
std::int64_t checked_size(std::int64_t samples);                            // not negative
// The indices of an epoch's samples, int64 on the CPU; undefined: as stored.
Tensor order_of(const BatchLoaderOptions& options, std::int64_t samples, std::int64_t epoch);

// State that a loader shares with its iterators, which may outlive it.
template <class Dataset, class Collate> struct LoaderParts final : SharedObject {
    LoaderParts(Dataset d, Collate c, const BatchLoaderOptions& o)
        : dataset(std::move(d)), collate(std::move(c)), options(o) {}
    const Dataset dataset;
    const Collate collate;
    const BatchLoaderOptions options;
    LoaderPosition next, position;
    double weight = 1;
};
template <class Dataset, class Collate> using SharedParts =
    mezzo::detail::SharedHandle<LoaderParts<Dataset, Collate>>;

template <class Batch> struct Made {
    Batch batch;
    std::int64_t samples;  // over all ranks
    double weight;
};
// The samples or indices of a rank's part of a batch.
template <class Sample> struct Claimed {
    std::vector<Sample> samples;
    std::int64_t total;  // over all ranks
    double weight;
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
    using Indices = Box<Claimed<std::int64_t>>;
    MapSource(const SharedParts<Dataset, Collate>& p, Tensor o, std::int64_t from)
        : parts(p),
          order(std::move(o)),
          total(order.defined() ? order.numel() : checked_size(parts->dataset.size())),
          next(from) {}
    SharedObject* claim() override {
        const std::int64_t size = parts->options.batch_size, count = std::min(size, total - next);
        if (count <= 0 || (parts->options.drop_last && count < size)) return nullptr;
        const ShardRows mine = parts->options.shard.slice(count);
        std::vector<std::int64_t> indices(static_cast<std::size_t>(mine.count));
        std::int64_t at = next + mine.first;
        for (std::int64_t& index : indices) {
            index = order.defined() ? order.data<std::int64_t>()[at] : at;
            ++at;
        }
        next += count;
        return new Indices({std::move(indices), count, mine.weight});
    }
    SharedObject* make(SharedObject& claimed) const override {
        const auto& own = static_cast<Indices&>(claimed).value;
        std::vector<typename Types::Sample> samples;
        samples.reserve(own.samples.size());
        for (const std::int64_t index : own.samples) samples.push_back(parts->dataset.get(index));
        return new Box<Made<typename Types::Batch>>(
            {parts->collate(std::move(samples)), own.total, own.weight});
    }
    SharedParts<Dataset, Collate> parts;
    Tensor order;  // undefined: as stored
    std::int64_t total, next;
};

template <class Dataset, class Collate> struct StreamSource final : BatchSource {
    using Types = StreamTypes<Dataset, Collate>;
    using Sample = typename Types::Sample;
    using Samples = Box<Claimed<Sample>>;
    StreamSource(const SharedParts<Dataset, Collate>& p, const LoaderPosition& from)
        : parts(p), stream(parts->dataset.stream(from.epoch)), skip(from.samples) {}
    SharedObject* claim() override {
        for (; skip > 0 && !ended; --skip) ended = !stream.next();
        const std::int64_t size = parts->options.batch_size;
        std::vector<Sample> samples;
        while (!ended && std::int64_t(samples.size()) < size) {
            auto sample = stream.next();
            if (sample) samples.push_back(std::move(*sample));
            ended = !sample;
        }
        if (samples.empty() || (parts->options.drop_last && std::int64_t(samples.size()) < size))
            return nullptr;
        const auto count = std::int64_t(samples.size());
        const ShardRows mine = parts->options.shard.slice(count);
        if (mine.count == count) return new Samples({std::move(samples), count, mine.weight});
        std::vector<Sample> own;
        for (std::int64_t i = mine.first; i < mine.first + mine.count; ++i)
            own.push_back(std::move(samples[std::size_t(i)]));
        return new Samples({std::move(own), count, mine.weight});
    }
    SharedObject* make(SharedObject& claimed) const override {
        auto& own = static_cast<Samples&>(claimed).value;
        return new Box<Made<typename Types::Batch>>(
            {parts->collate(std::move(own.samples)), own.total, own.weight});
    }
    SharedParts<Dataset, Collate> parts;
    typename Types::Stream stream;
    std::int64_t skip;
    bool ended = false;  // next() is not called again
};

}  // namespace detail

// Makes batches of samples: for (auto& batch : loader) runs one epoch; the next such loop is the next epoch.
// collate(std::vector<Sample>) makes a batch of any type; it is called from several threads at once.
// data::prefetch(loader) copies the batches to a device ahead of use.
//
// Batches depend only on the options, the epoch and the position: a run that is resumed by set_position()
// gets exactly the remaining samples. A stream is read again up to that position. Iterators may outlive the
// loader.
template <BatchDataset Dataset, class Collate> class BatchLoader {
    static constexpr bool is_map = MapDataset<Dataset>;
    using Types =
        typename std::conditional_t<is_map, std::type_identity<detail::MapTypes<Dataset, Collate>>,
                                    std::type_identity<detail::StreamTypes<Dataset, Collate>>>::type;
    using Parts = detail::SharedParts<Dataset, Collate>;

public:
    using Batch = typename Types::Batch;

    // Throws Error(value) for a batch_size or prefetch_factor below 1, num_workers outside of [0, 1024],
    // shuffle together with a sampler, either of them for a stream, and a shard whose rank is not in
    // [0, size).
    BatchLoader(Dataset dataset, Collate collate, const BatchLoaderOptions& options = {})
        : parts_(new detail::LoaderParts<Dataset, Collate>(std::move(dataset), std::move(collate), options)) {
        detail::check_options(options, !is_map);
    }
    // Batches are those of DefaultCollate.
    explicit BatchLoader(Dataset dataset, const BatchLoaderOptions& options = {}) requires
        std::same_as<Collate, DefaultCollate> : BatchLoader(std::move(dataset), {}, options) {}
    BatchLoader(const BatchLoader&) = delete;  // a copy would share the position
    BatchLoader& operator=(const BatchLoader&) = delete;

    // Batches per epoch; not defined for a stream.
    [[nodiscard]] std::int64_t size() const requires is_map {
        const std::int64_t n = samples(), b = parts_->options.batch_size;
        return parts_->options.drop_last ? n / b : n / b + (n % b != 0);
    }
    [[nodiscard]] const Dataset& dataset() const { return parts_->dataset; }
    // The position after the last returned batch, in samples; once a loop has run to the end, the start of
    // the next epoch. After a `break` the next loop is the next epoch, while a run that is resumed from here
    // gets the rest of this one; after set_position(position()) the next loop does so, too. In a loop over
    // data::prefetch(loader) ask its result for the position and the weight: this one's are ahead.
    [[nodiscard]] LoaderPosition position() const { return parts_->position; }
    // The weight of the batch returned last: multiply losses that are means over the batch by it if several
    // ranks train.
    [[nodiscard]] double weight() const { return parts_->weight; }
    // Sets the begin of the next loop. Throws Error(value) for a position that is negative, for an epoch of
    // 2^62 or more and, if the size is known, for a position beyond the end.
    void set_position(const LoaderPosition& position) {
        detail::check_position(position, samples());
        parts_->next = parts_->position = position;
    }

    // Iterator over the batches of an epoch. operator++ and begin() throw what making their batch has thrown.
    class Iterator {
    public:
        using value_type = Batch;
        Batch& operator*() {
            parts_->position = {.epoch = epoch_, .samples = before_ + current().samples};
            parts_->weight = current().weight;
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
        Iterator(const Parts& parts, detail::BatchSource* source, const LoaderPosition& from)
            : parts_(parts), epoch_(from.epoch), before_(from.samples) {
            const BatchLoaderOptions& o = parts->options;
            const std::int64_t ahead = std::int64_t(o.num_workers) * o.prefetch_factor;
            queue_.emplace(new detail::BatchQueue(source, o.num_workers, ahead > 0 ? ahead : 1));
            take();
        }
        using Box = detail::Box<detail::Made<Batch>>;
        detail::Made<Batch>& current() { return (*current_)->value; }
        // Not inlined: at -O1 and -O2, GCC 12 would warn in users' loops that current_ may be uninitialised.
        [[gnu::noinline]] void take() {
            if (detail::SharedObject* const made = (*queue_)->take(index_++))
                current_.emplace(static_cast<Box*>(made));
            else
                parts_->position = {.epoch = epoch_ + 1};
        }
        Parts parts_;
        std::int64_t epoch_, before_, index_ = 0;
        std::optional<mezzo::detail::SharedHandle<detail::BatchQueue>> queue_;
        std::optional<mezzo::detail::SharedHandle<Box>> current_;
    };
    Iterator begin() {
        const LoaderPosition from = parts_->next;
        detail::BatchSource* const batches = source(from);  // if it throws, the next loop is this epoch
        parts_->next = {.epoch = from.epoch + 1};
        parts_->position = from;
        return Iterator(parts_, batches, from);
    }
    std::default_sentinel_t end() const { return {}; }

private:
    [[nodiscard]] std::int64_t samples() const {
        if constexpr (is_map) {
            const std::optional<Sampler>& sampler = parts_->options.sampler;
            return detail::checked_size(sampler ? sampler->size() : parts_->dataset.size());
        }
        return -1;
    }
    detail::BatchSource* source(const LoaderPosition& from) {
        if constexpr (is_map) {
            const std::int64_t samples = detail::checked_size(parts_->dataset.size());
            return new detail::MapSource<Dataset, Collate>(
                parts_, detail::order_of(parts_->options, samples, from.epoch), from.samples);
        } else {
            return new detail::StreamSource<Dataset, Collate>(parts_, from);
        }
    }
    Parts parts_;
};
template <BatchDataset Dataset> BatchLoader(Dataset, const BatchLoaderOptions& = {})
    -> BatchLoader<Dataset, DefaultCollate>;

}  // namespace mezzo::data

#pragma GCC visibility pop
