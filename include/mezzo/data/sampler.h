// Samplers: choose the samples of an epoch and their order.
//
//   const data::WeightedRandomSampler rare_often({0.1, 0.1, 0.8}, {.num_samples = 1000});
//   data::DataLoader loader(data::Dataset{x, labels}, {.batch_size = 64, .sampler = rare_often});
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// A sampler. size() is the number of samples of an epoch, the same for each epoch. order(epoch) returns their
// indices in the data set, int64 [size()] on the CPU, and depends only on the epoch's number, so that all
// ranks, and a resumed run, get the same order.
template <class S>
concept SamplerLike = requires(const S& sampler, std::int64_t epoch) {
    { sampler.size() } -> std::convertible_to<std::int64_t>;
    { sampler.order(epoch) } -> std::same_as<Tensor>;
};

namespace detail {

struct ErasedSampler : mezzo::detail::SharedObject {
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual Tensor order(std::int64_t epoch) const = 0;
};
template <SamplerLike S> struct SamplerOf final : ErasedSampler {
    explicit SamplerOf(S given) : sampler(std::move(given)) {}
    std::int64_t size() const override { return sampler.size(); }
    Tensor order(std::int64_t epoch) const override { return sampler.order(epoch); }
    S sampler;
};

}  // namespace detail

// A sampler of any type: one of those below, or a user's own.
class Sampler {
public:
    template <SamplerLike S>
    requires(!std::same_as<std::remove_cvref_t<S>, Sampler>) Sampler(S sampler)
        : sampler_(new detail::SamplerOf<S>(std::move(sampler))) {}
    [[nodiscard]] std::int64_t size() const { return sampler_->size(); }
    [[nodiscard]] Tensor order(std::int64_t epoch) const { return sampler_->order(epoch); }

private:
    mezzo::detail::SharedHandle<detail::ErasedSampler> sampler_;
};

struct WeightedRandomSamplerOptions {
    std::int64_t num_samples = 0;  // of an epoch; 0: as many as there are weights
    bool replacement = true;       // false: no sample twice in an epoch
    std::uint64_t seed = 0;        // of the draws, with the epoch's number
};

// Draws sample i with a probability in proportion to weights[i]; with 1 / (size of its class) as weights, all
// classes come equally often.
class WeightedRandomSampler {
public:
    // Throws Error(value) where weights are empty, negative, not finite or all 0, where their sum is not
    // finite, for negative num_samples, and if, without replacement, num_samples exceeds the number of
    // weights above 0.
    explicit WeightedRandomSampler(std::vector<double> weights,
                                   const WeightedRandomSamplerOptions& options = {});
    [[nodiscard]] std::int64_t size() const { return options_.num_samples; }
    [[nodiscard]] Tensor order(std::int64_t epoch) const;

private:
    [[nodiscard]] std::vector<std::int64_t> with_replacement(std::int64_t epoch) const;
    [[nodiscard]] std::vector<std::int64_t> without_replacement(std::int64_t epoch) const;
    std::vector<double> weights_;
    WeightedRandomSamplerOptions options_;
};

struct LengthBucketSamplerOptions {
    std::int64_t batch_size = 64;  // of the loader
    // Number of batches among which samples are sorted by length: more of them need less padding, fewer keep
    // the order more random.
    std::int64_t bucket_batches = 50;
    bool shuffle = true;  // false: all samples by their length, longest first
    std::uint64_t seed = 0;
};

// All samples once per epoch, those of a batch with similar lengths, so that little is padded: a random order
// is cut into buckets of bucket_batches batches, each bucket is sorted by length, and the batches come in
// random order. The one that is smaller than batch_size is the last.
class LengthBucketSampler {
public:
    // Error(value) for a negative length, and for numbers below 1 in the options.
    explicit LengthBucketSampler(std::vector<std::int64_t> lengths,
                                 const LengthBucketSamplerOptions& options = {});
    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(lengths_.size()); }
    [[nodiscard]] Tensor order(std::int64_t epoch) const;

private:
    std::vector<std::int64_t> lengths_;
    LengthBucketSamplerOptions options_;
};

}  // namespace mezzo::data

#pragma GCC visibility pop
