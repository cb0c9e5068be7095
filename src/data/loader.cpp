// In-memory batches: order, gathering of rows, normalisation.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "core/tensor_impl.h"
#include "mezzo/data.h"

namespace mezzo::data {

namespace {

// A permutation by Fisher and Yates from a Philox stream of its own, so that the loader's order depends on
// seed and epoch only.
Tensor permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = std::int64_t(i);
    for (std::uint64_t i = std::uint64_t(n); i > 1; --i) {
        const PhiloxWords words = philox(seed, i, std::uint64_t(epoch));
        const std::uint64_t random = std::uint64_t(words.v[0]) << 32 | words.v[1];
        std::swap(order[i - 1], order[random % i]);  // bias below i / 2^64
    }
    return Tensor::from(order, {n});
}

// Copies rows order[first], order[first + 1], ... of a contiguous tensor; without an order, `count` rows from
// `first` on as a view.
Tensor gather_rows(const Tensor& x, const Tensor& order, std::int64_t first, std::int64_t count) {
    if (!order.defined()) return x.slice(0, first, first + count);
    Shape shape = x.shape();
    shape[0] = count;
    const Tensor result = empty(shape, {.dtype = x.dtype()});
    const std::size_t bytes = x.size(0) == 0 ? 0 : std::size_t(x.numel() / x.size(0)) * size_of(x.dtype());
    const std::int64_t* const rows = order.data<std::int64_t>() + first;
    for (std::int64_t i = 0; i < count && bytes > 0; ++i)
        std::memcpy(static_cast<char*>(raw(result)) + std::size_t(i) * bytes,
                    static_cast<const char*>(raw(x)) + std::size_t(rows[i]) * bytes, bytes);
    return result;
}

Tensor normalized(const Tensor& x, const DataLoaderOptions& options) {
    if (x.dtype() == uint8) {
        float table[256];
        for (int v = 0; v < 256; ++v) table[v] = float((v / 255.0 - options.mean) / options.stddev);
        const Tensor packed = x.contiguous();
        const Tensor result = empty(x.shape());
        const std::uint8_t* const from = packed.data<std::uint8_t>();
        std::transform(from, from + packed.numel(), result.data<float>(),
                       [&](std::uint8_t v) { return table[v]; });
        return result;
    }
    if (!is_floating(x.dtype()) || (options.mean == 0 && options.stddev == 1)) return x;
    const Tensor result = x.clone();
    result.add_(full({}, -options.mean, {.dtype = x.dtype()}));
    return result.mul_(1 / options.stddev);
}

}  // namespace

DataLoader::DataLoader(const Dataset& dataset, const DataLoaderOptions& options)
    : dataset_(dataset), options_(options) {
    check(dataset.x.defined() && dataset.y.defined(), ErrorKind::value,
          "DataLoader: ", dataset.x.defined() ? "y" : "x", " is undefined");
    check(dataset.x.dim() >= 1 && dataset.y.dim() >= 1 && dataset.x.size(0) == dataset.y.size(0),
          ErrorKind::shape, "DataLoader: x ", dataset.x.shape(), " and y ", dataset.y.shape(),
          " differ in their first sizes; each row of x needs one of y");
    check(dataset.x.device() == cpu_device && dataset.y.device() == cpu_device, ErrorKind::device,
          "DataLoader: the dataset is on ", dataset.x.device(),
          "; keep it on the CPU, options.device is where batches go");
    check(options.batch_size >= 1, ErrorKind::value, "DataLoader: batch_size is ", options.batch_size);
    check(std::isfinite(options.mean) && std::isfinite(options.stddev) && options.stddev > 0,
          ErrorKind::value, "DataLoader: mean is ", options.mean, " and stddev ", options.stddev,
          "; stddev must be positive");
    check(options.prefetch >= 0, ErrorKind::value, "DataLoader: prefetch is ", options.prefetch,
          "; it must not be negative");
    dataset_ = {dataset.x.detach().contiguous(), dataset.y.detach().contiguous()};
}

std::int64_t DataLoader::size() const {
    const std::int64_t n = dataset_.size(), b = options_.batch_size;
    return options_.drop_last ? n / b : (n + b - 1) / b;
}

DataLoader::Iterator DataLoader::begin() {
    const Tensor order = options_.shuffle ? permutation(dataset_.size(), options_.seed, epoch_) : Tensor();
    Iterator first(Place(this, order), {}, {.device = options_.device, .ahead = options_.prefetch});
    ++epoch_;
    return first;
}

Batch DataLoader::batch(const Tensor& order, std::int64_t index) const {
    const std::int64_t first = index * options_.batch_size;
    const std::int64_t count = std::min(options_.batch_size, dataset_.size() - first);
    check(index >= 0 && count > 0, ErrorKind::value, "DataLoader: no batch ", index, ", there are ", size());
    const Tensor x = gather_rows(dataset_.x, order, first, count),
                 y = gather_rows(dataset_.y, order, first, count);
    return {normalized(x, options_), y.contiguous()};
}

}  // namespace mezzo::data
