#include <algorithm>
#include <numeric>

#include "data/epoch_order.h"
#include "mezzo/data/sampler.h"
#include "mezzo/error.h"

namespace mezzo::data {

namespace {

// Keeps the random streams of samples and of batches apart.
constexpr std::uint64_t batch_seed = 0x9e3779b97f4a7c15u;

}  // namespace

LengthBucketSampler::LengthBucketSampler(std::vector<std::int64_t> lengths,
                                         const LengthBucketSamplerOptions& options)
    : lengths_(std::move(lengths)), options_(options) {
    for (std::size_t i = 0; i < lengths_.size(); ++i)
        check(lengths_[i] >= 0, ErrorKind::value, "LengthBucketSampler: length ", i, " is ", lengths_[i]);
    check(options.batch_size >= 1 && options.bucket_batches >= 1, ErrorKind::value,
          "LengthBucketSampler: batch_size is ", options.batch_size, ", bucket_batches ",
          options.bucket_batches);
}

Tensor LengthBucketSampler::order(std::int64_t epoch) const {
    const std::int64_t n = size(), batch = options_.batch_size;
    std::vector<std::int64_t> order(lengths_.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    if (options_.shuffle) order = permutation(n, options_.seed, epoch).to_vector<std::int64_t>();
    const auto longer = [&](std::int64_t a, std::int64_t b) {
        return lengths_[std::size_t(a)] > lengths_[std::size_t(b)];
    };
    const std::int64_t most = n / batch + 1;  // keeps the product below from overflowing
    const std::int64_t bucket = options_.shuffle ? batch * std::min(options_.bucket_batches, most) : n;
    for (std::int64_t first = 0; first < n; first += bucket)
        std::stable_sort(order.begin() + first, order.begin() + std::min(first + bucket, n), longer);
    if (!options_.shuffle) return Tensor::from(order, {n});
    const std::int64_t whole = n / batch;
    std::vector<std::int64_t> result;
    for (const std::int64_t i :
         permutation(whole, options_.seed ^ batch_seed, epoch).to_vector<std::int64_t>())
        result.insert(result.end(), order.begin() + i * batch, order.begin() + (i + 1) * batch);
    result.insert(result.end(), order.begin() + whole * batch, order.end());
    return Tensor::from(result, {n});
}

}  // namespace mezzo::data
