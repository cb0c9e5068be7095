// Data sets in memory or made on demand (IDX files, Fashion-MNIST), and DataLoader, which makes batches of
// them.
//
//   data::DataLoader loader(data::fashion_mnist(), {.batch_size = 64, .shuffle = true});
//   for (const auto& [x, y] : loader) {  // one epoch
//       loss = cross_entropy(net(x.flatten(1)), y);
//   }
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/data/batch_queue.h"
#include "mezzo/data/prefetch.h"
#include "mezzo/data/sampler.h"
#include "mezzo/data/transforms.h"
#include "mezzo/shard.h"
#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// Reads an IDX file (LeCun's MNIST format), plain or gzip: element types unsigned byte, int32, float32 and
// float64 become uint8, int32, float32, float64; int8 and int16 become int32. Throws Error(io) for a missing,
// truncated, over-long or damaged file, or another type.
[[nodiscard]] Tensor read_idx(const std::string& path);

// Samples and their class indices, in the same order.
struct Dataset {
    Tensor x;  // [n, ...]
    Tensor y;  // int64 [n]
    [[nodiscard]] std::int64_t size() const { return x.size(0); }
};

struct FashionMnistOptions {
    bool train = true;  // 60,000 images; else the 10,000 test images
    std::string directory =
        "/usr/share/datasets/fashion-mnist";  // where Debian's dataset-fashion-mnist puts the files
};
// Images uint8 [n, 28, 28] and labels 0 … 9 of Fashion-MNIST (Xiao et al., arXiv 1708.07747). Throws
// Error(io) for files that are missing, have other shapes, or hold no image.
[[nodiscard]] Dataset fashion_mnist(const FashionMnistOptions& options = {});

// A data set that makes samples on demand: an ImageFolder (mezzo/data/images.h), or a class of the user.
// image(i) is called from several threads at once.
template <class D>
concept LazyDataset = requires(const D& dataset, std::int64_t i) {
    { dataset.size() } -> std::convertible_to<std::int64_t>;
    { dataset.image(i) } -> std::same_as<Tensor>;
    { dataset.label(i) } -> std::convertible_to<std::int64_t>;
};

struct DataLoaderOptions {
    std::int64_t batch_size = 64;  // over all ranks
    bool shuffle = false;          // a new order each epoch, fixed by seed and the epoch's number
    bool drop_last = false;        // leave out the last batch when it is smaller
    std::uint64_t seed = 0;
    // Samples of an epoch and their order; replaces `shuffle`.
    std::optional<Sampler> sampler = {};
    // This rank's part of every batch. With group.shard() the ranks' batches, concatenated, are those of a
    // training with one process.
    Shard shard = {};
    // Transforms of each sample, applied in this order, on all threads; samples must then be uint8 images.
    std::vector<Transform> transforms = {};
    // Normalisation: uint8 samples become (value / 255 - mean) / stddev in `dtype`, floating ones (value -
    // mean) / stddev. Several values are one for each channel, the last dimension.
    PerChannel mean = 0, stddev = 1;
    Dtype dtype = float32;  // floating; of x where samples are uint8
    // Transforms of each batch after that, in this order. With several ranks each one transforms its own
    // part.
    std::vector<BatchTransform> batch_transforms = {};
    Device device = cpu_device;  // the batches are copied there
    // Number of batches that are assembled and copied to a CUDA device ahead of use: see
    // PrefetchOptions::ahead.
    int prefetch = automatic_prefetch;
    // Number of threads that make batches during the training, one batch each, at most num_workers *
    // prefetch_factor batches ahead. 0: batches are made on the calling thread and the CPU backend's threads.
    // The batches are the same. Samples, transforms and batch transforms are then called from several threads
    // at once; their exceptions are thrown when the batch is taken.
    int num_workers = 0;
    int prefetch_factor = 2;
};

namespace detail {

// Samples of any kind of data set.
struct Samples : mezzo::detail::SharedObject {
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual Tensor image(std::int64_t index) const = 0;
    [[nodiscard]] virtual std::int64_t label(std::int64_t index) const = 0;
};
template <LazyDataset D> struct SamplesOf final : Samples {
    explicit SamplesOf(D given) : dataset(std::move(given)) {}
    std::int64_t size() const override { return dataset.size(); }
    Tensor image(std::int64_t index) const override { return dataset.image(index); }
    std::int64_t label(std::int64_t index) const override { return dataset.label(index); }
    D dataset;
};

}  // namespace detail

// Makes batches of a data set: for (const auto& [x, y] : loader) runs one epoch; the next such loop is the
// next epoch. If several ranks train, multiply losses that are means over the batch by batch.weight: for
// (const auto& batch : loader).
//
// Batches depend only on the options, the epoch and the position. A run that is resumed by set_position(), on
// any number of ranks, gets exactly the remaining samples, each once, with the same transforms. Iterators may
// outlive the loader.
class DataLoader {
    // A copy that iterators and worker threads share, so that they may outlive the loader.
    using Shared = mezzo::detail::SharedHandle<detail::Box<DataLoader>>;

public:
    // Throws Error(value) for an undefined tensor, a batch_size below 1, a prefetch below automatic_prefetch,
    // num_workers outside of [0, 1024], a prefetch_factor below 1, and a mean or stddev that is not finite or
    // a stddev that is not positive; Error(dtype) for a dtype that is not floating, for transforms of samples
    // that are not uint8, and for a mean or stddev of samples that are neither uint8 nor floating;
    // Error(value) also for a shard whose rank is not in [0, size) and for a sampler together with shuffle;
    // Error(shape) where x and y differ in their first size; Error(device) for a data set that is not on the
    // CPU. begin() throws Error(device) for an options.device that does not exist, and Error(value) or
    // Error(dtype) for an invalid order() of the sampler.
    explicit DataLoader(const Dataset& dataset, const DataLoaderOptions& options = {});
    // Batches of x [n, height, width, channels] and y int64 [n]. Taking a batch throws Error(shape) if its
    // images differ in size after the transforms, and what the data set and the transforms throw.
    template <LazyDataset D> explicit DataLoader(D dataset, const DataLoaderOptions& options = {})
        : DataLoader(Lazy(new detail::SamplesOf<D>(std::move(dataset))), options) {}
    [[nodiscard]] std::int64_t size() const;       // batches per epoch, the same on every rank
    [[nodiscard]] const Dataset& dataset() const;  // Error(state) for a lazy one
    // Epochs begun so far; set it to continue the order of an interrupted run.
    [[nodiscard]] std::int64_t epoch() const { return progress_->next.epoch; }
    void set_epoch(std::int64_t epoch) { set_position({.epoch = epoch}); }
    // The position after the last returned batch, in the epoch begun last; once its loop has run to the end,
    // the start of the next epoch. Batches that options.prefetch assembles ahead do not count; batches that
    // data::prefetch() has taken do, so prefer options.prefetch. After a `break` the next loop is the next
    // epoch, while a run that is resumed from here gets the rest of this one; after set_position(position())
    // the next loop does so, too.
    [[nodiscard]] LoaderPosition position() const { return progress_->position; }
    // Sets the begin of the next loop, which runs the rest of that epoch (possibly empty). Throws
    // Error(value) for a position that is negative or has more samples than an epoch, and for an epoch of
    // 2^62 or more.
    void set_position(const LoaderPosition& position);

    // Iterator over the batches of an epoch, on the CPU.
    class BatchPosition {
    public:
        Batch operator*() const;
        BatchPosition& operator++() {
            first_ = loader_->value.behind(first_);
            return *this;
        }
        friend bool operator==(const BatchPosition& it, std::default_sentinel_t) { return it.at_end(); }

    private:
        friend class DataLoader;
        BatchPosition(const Shared& loader, Tensor order, const LoaderPosition& from);
        bool at_end() const { return loader_->value.rows_at(first_) == 0; }
        Shared loader_;
        Tensor order_;  // int64 [n], undefined: as stored
        std::int64_t epoch_;
        std::int64_t start_, first_;  // row of the epoch at construction, and current row
        std::optional<mezzo::detail::SharedHandle<detail::BatchQueue>> queue_;  // if there are workers
    };
    // Iterator over the batches of an epoch, or of the rest of one, on options.device.
    class Iterator {
    public:
        using value_type = Batch;
        Batch operator*();
        Iterator& operator++();
        friend bool operator==(const Iterator& it, std::default_sentinel_t end) { return it.batches_ == end; }

    private:
        friend class DataLoader;
        Iterator(const DataLoader& loader, Tensor order, const LoaderPosition& from);
        void reach(const LoaderPosition& position) const;
        Shared loader_;
        mezzo::detail::SharedHandle<detail::LoaderProgress> progress_;  // of the loader itself
        LoaderPosition at_;                                             // of the batch
        PrefetchIterator<BatchPosition, std::default_sentinel_t> batches_;
    };
    Iterator begin();
    std::default_sentinel_t end() const { return {}; }

private:
    struct [[gnu::visibility("hidden")]] Worker;
    using Lazy = mezzo::detail::SharedHandle<detail::Samples>;
    DataLoader(Lazy samples, const DataLoaderOptions& options);
    void check_options() const;
    std::int64_t samples() const;                    // of an epoch
    std::int64_t rows_at(std::int64_t first) const;  // of the batch at row `first`, over all ranks
    std::int64_t behind(std::int64_t first) const;   // first row of the batch after that one
    Tensor order_of(std::int64_t epoch) const;
    Batch batch(const Tensor& order, std::int64_t epoch, std::int64_t first) const;
    Tensor stored(const Tensor& order, std::int64_t first, std::int64_t count) const;
    Tensor transformed(const Tensor& order, std::int64_t epoch, std::int64_t first, std::int64_t count) const;
    Tensor labels(const Tensor& order, std::int64_t first, std::int64_t count) const;

    Dataset dataset_;  // undefined for a lazy one
    Lazy samples_;
    DataLoaderOptions options_;
    detail::OwnProgress progress_;
};

}  // namespace mezzo::data

#pragma GCC visibility pop
