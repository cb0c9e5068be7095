// Lengths of random parts, offsets of data sets, rows of tensors, and stacked samples.
#include "mezzo/data/subset.h"

#include <cmath>

#include "core/memory/memory_error.h"
#include "data/epoch_order.h"
#include "mezzo/autograd.h"
#include "mezzo/data/collate.h"
#include "mezzo/ops.h"

namespace mezzo::data {

namespace detail {

void check_index(const char* op, std::int64_t index, std::int64_t size) {
    check(index >= 0 && index < size, ErrorKind::value, op, ": index ", index, " of ", size, " samples");
}

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& sizes) {
    check(!sizes.empty(), ErrorKind::value, "ConcatDataset: there are no data sets");
    std::vector<std::int64_t> offsets{0};
    for (const std::int64_t size : sizes) {
        std::int64_t sum = 0;
        check(size >= 0 && !__builtin_add_overflow(offsets.back(), size, &sum), ErrorKind::value,
              "ConcatDataset: size() of data set ", offsets.size() - 1, " is ", size);
        offsets.push_back(sum);
    }
    return offsets;
}

}  // namespace detail

namespace {

// Distinguishes the order of random_split() from the first epoch of a loader with the same seed.
constexpr std::uint64_t split_seed = 0x6a09e667f3bcc909u;

std::vector<std::int64_t> counts_of(std::int64_t n, const std::vector<Scalar>& lengths) {
    double sum = 0;
    for (const Scalar length : lengths) sum += length.to<double>();
    const bool shares = std::abs(sum - 1) <= 1e-9;
    std::vector<std::int64_t> counts;
    std::int64_t left = n;
    for (const Scalar length : lengths) {
        const double value = length.to<double>();
        check(value >= 0 && (shares ? value <= 1 : length.is_integer() || value == std::floor(value)),
              ErrorKind::value, "random_split: a length is ", value,
              "; lengths must be whole numbers that add up to the ", n,
              " samples, or shares in [0, 1] that add up to 1");
        const double count = shares ? std::floor(double(n) * value) : value;
        check(count <= double(left), ErrorKind::value, "random_split: the lengths add up to ", sum,
              ", and there are ", n, " samples");
        counts.push_back(std::int64_t(count));
        left -= counts.back();
    }
    check(left == 0 || shares, ErrorKind::value, "random_split: the lengths add up to ", sum,
          ", and there are ", n, " samples");
    for (std::size_t i = 0; left > 0; ++i, --left) ++counts[i % counts.size()];
    return counts;
}

}  // namespace

std::vector<std::vector<std::int64_t>> random_split(std::int64_t n, const std::vector<Scalar>& lengths,
                                                    const RandomSplitOptions& options) {
    check(n >= 0, ErrorKind::value, "random_split: ", n, " samples");
    const std::vector<std::int64_t> counts = counts_of(n, lengths);
    const auto split = [&] {
        const std::vector<std::int64_t> order =
            permutation(n, options.seed ^ split_seed, 0).to_vector<std::int64_t>();
        std::vector<std::vector<std::int64_t>> parts;
        auto first = order.begin();
        for (const std::int64_t count : counts) {
            parts.emplace_back(first, first + count);
            first += count;
        }
        return parts;
    };
    return or_memory_error("random_split", split, "for ", n, " indices");
}

std::vector<Dataset> random_split(const Dataset& dataset, const std::vector<Scalar>& lengths,
                                  const RandomSplitOptions& options) {
    const TensorDataset rows({dataset.x, dataset.y});
    const NoGrad no_grad;
    std::vector<Dataset> parts;
    for (const std::vector<std::int64_t>& indices : random_split(rows.size(), lengths, options)) {
        const Tensor index = Tensor::from(indices, {std::int64_t(indices.size())});
        parts.push_back({index_select(dataset.x, 0, index), index_select(dataset.y, 0, index)});
    }
    return parts;
}

Tensor DefaultCollate::stacked(const Tensors& samples) { return stack(samples); }

Tensors DefaultCollate::stacked_lists(const std::vector<Tensors>& samples) {
    Tensors batch;
    for (std::size_t i = 0; !samples.empty() && i < samples[0].size(); ++i) {
        Tensors part;
        for (const Tensors& sample : samples) {
            check(sample.size() == samples[0].size(), ErrorKind::shape, "DefaultCollate: samples of ",
                  samples[0].size(), " and ", sample.size(), " tensors cannot be in one batch");
            part.push_back(sample[i]);
        }
        batch.push_back(stack(part));
    }
    return batch;
}

TensorDataset::TensorDataset(Tensors tensors) : tensors_(std::move(tensors)) {
    check(!tensors_.empty(), ErrorKind::value, "TensorDataset: there are no tensors");
    for (Tensor& x : tensors_) {
        check(x.defined(), ErrorKind::value, "TensorDataset: a tensor is undefined");
        check(x.dim() > 0 && x.size(0) == tensors_[0].size(0), ErrorKind::shape,
              "TensorDataset: ", tensors_[0].shape(), " and ", x.shape(), " differ in their first sizes");
        check(x.device() == cpu_device, ErrorKind::device, "TensorDataset: a tensor is on ", x.device(),
              "; keep it on the CPU, and let prefetch() copy batches to the device");
        x = x.detach();
    }
}

Tensors TensorDataset::get(std::int64_t i) const {
    detail::check_index("TensorDataset", i, size());
    Tensors sample;
    for (const Tensor& x : tensors_) sample.push_back(x.select(0, i));
    return sample;
}

}  // namespace mezzo::data
