// Data: IDX files, Fashion-MNIST, and a loader of in-memory batches.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>

#include "mezzo/prefetch.h"
#include "mezzo/tensor.h"

namespace mezzo::data {

// Reads an IDX file (LeCun's MNIST format), plain or gzip: element types unsigned byte, int32, float32 and
// float64 become uint8, int32, float32, float64. Throws Error(io) for a missing, truncated, over-long or
// damaged file, or another type.
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
// Error(io) for files that are missing, unfit or without an image.
[[nodiscard]] Dataset fashion_mnist(const FashionMnistOptions& options = {});

struct DataLoaderOptions {
    std::int64_t batch_size = 64;
    bool shuffle = false;    // a new order each epoch, fixed by seed and the epoch's number
    bool drop_last = false;  // leave out the last batch when it is smaller
    std::uint64_t seed = 0;
    // uint8 samples become float32 (value / 255 - mean) / stddev, floating ones (value - mean) / stddev.
    double mean = 0, stddev = 1;
    Device device = cpu_device;  // where the batches go
    // Batches that are assembled and copied to a CUDA device while one is in use: see prefetch(). Off by
    // default (see "What has not run on a GPU" in docs/cuda.md).
    int prefetch = 0;
};

struct Batch {
    Tensor x;
    Tensor y;
};
template <class F> void each_tensor(Batch& batch, F&& f) {
    f(batch.x);
    f(batch.y);
}

// for (const auto& [x, y] : loader) runs one epoch; the next such loop is the next epoch.
class DataLoader {
public:
    // Throws Error(value) for an undefined tensor, a batch_size below 1, a negative prefetch, and a mean or
    // stddev that is not finite or a stddev that is not positive; Error(shape) where x and y differ in their
    // first size; Error(device) for a data set that is not on the CPU. begin() throws Error(device) for an
    // options.device that is not there.
    explicit DataLoader(const Dataset& dataset, const DataLoaderOptions& options = {});
    [[nodiscard]] std::int64_t size() const;  // batches per epoch
    [[nodiscard]] const Dataset& dataset() const { return dataset_; }
    // Epochs begun so far; set it to continue the order of an interrupted run.
    [[nodiscard]] std::int64_t epoch() const { return epoch_; }
    void set_epoch(std::int64_t epoch) { epoch_ = epoch; }

    // A batch of an epoch, on the CPU.
    class Place {
    public:
        Batch operator*() const { return loader_->batch(order_, index_); }
        Place& operator++() {
            ++index_;
            return *this;
        }
        friend bool operator==(const Place& it, std::default_sentinel_t) {
            return it.index_ >= it.loader_->size();
        }

    private:
        friend class DataLoader;
        Place(const DataLoader* loader, Tensor order) : loader_(loader), order_(std::move(order)) {}
        const DataLoader* loader_;
        Tensor order_;  // int64 [n], undefined: as stored
        std::int64_t index_ = 0;
    };
    using Iterator = PrefetchIterator<Place, std::default_sentinel_t>;
    Iterator begin();
    std::default_sentinel_t end() const { return {}; }

private:
    Batch batch(const Tensor& order, std::int64_t index) const;

    Dataset dataset_;
    DataLoaderOptions options_;
    std::int64_t epoch_ = 0;
};

}  // namespace mezzo::data
