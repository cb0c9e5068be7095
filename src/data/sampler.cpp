#include "mezzo/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/memory/memory_error.h"
#include "core/philox.h"
#include "mezzo/error.h"

namespace mezzo::data {

namespace {

// Returns random number `index` of an epoch, in (0, 1). Bit 62 separates the stream from those of the
// loader's order and of transforms.
double draw(std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
    const PhiloxWords words =
        philox(seed, std::uint64_t(index), std::uint64_t(epoch) | std::uint64_t(1) << 62);
    const std::uint64_t bits = (std::uint64_t(words.v[0]) << 32 | words.v[1]) >> 12;
    return (double(bits) + 0.5) * 0x1p-52;
}

}  // namespace

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights,
                                             const WeightedRandomSamplerOptions& options)
    : weights_(std::move(weights)), options_(options) {
    double sum = 0;
    std::int64_t positive = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
        check(weights_[i] >= 0 && std::isfinite(weights_[i]), ErrorKind::value,
              "WeightedRandomSampler: weight ", i, " is ", weights_[i],
              "; weights are finite and not negative");
        sum += weights_[i];
        positive += weights_[i] > 0;
    }
    check(positive > 0 && std::isfinite(sum), ErrorKind::value, "WeightedRandomSampler: the ",
          weights_.size(), " weights add up to ", sum, "; it must be positive and finite");
    check(options_.num_samples >= 0, ErrorKind::value, "WeightedRandomSampler: num_samples is ",
          options_.num_samples);
    if (options_.num_samples == 0) options_.num_samples = std::int64_t(weights_.size());
    check(options_.replacement || options_.num_samples <= positive, ErrorKind::value,
          "WeightedRandomSampler: ", options_.num_samples, " samples without replacement, and only ",
          positive, " have a weight above 0; set num_samples");
}

std::vector<std::int64_t> WeightedRandomSampler::with_replacement(std::int64_t epoch) const {
    std::vector<double> sums(weights_.size());
    std::partial_sum(weights_.begin(), weights_.end(), sums.begin());
    std::vector<std::int64_t> order;
    order.reserve(static_cast<std::size_t>(options_.num_samples));
    for (std::int64_t i = 0; i < options_.num_samples; ++i) {
        // The product may be rounded up to the sum of all weights: the last sample with a weight is drawn
        // then.
        const double place =
            std::min(draw(options_.seed, epoch, i) * sums.back(), std::nextafter(sums.back(), 0.0));
        order.push_back(std::upper_bound(sums.begin(), sums.end(), place) - sums.begin());
    }
    return order;
}

// Returns the samples with the smallest -ln(u) / weight, in this order (Efraimidis and Spirakis, 2006):
// distributed as if drawn one by one, each in proportion to the weights of the remaining samples.
std::vector<std::int64_t> WeightedRandomSampler::without_replacement(std::int64_t epoch) const {
    std::vector<double> keys(weights_.size());
    for (std::size_t i = 0; i < keys.size(); ++i)
        keys[i] = weights_[i] > 0 ? -std::log(draw(options_.seed, epoch, std::int64_t(i))) / weights_[i]
                                  : std::numeric_limits<double>::infinity();
    std::vector<std::int64_t> order(keys.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto before = [&](std::int64_t a, std::int64_t b) {
        const double x = keys[std::size_t(a)], y = keys[std::size_t(b)];
        return x != y ? x < y : (weights_[std::size_t(a)] > 0) > (weights_[std::size_t(b)] > 0);
    };
    std::stable_sort(order.begin(), order.end(), before);
    order.resize(static_cast<std::size_t>(options_.num_samples));
    return order;
}

Tensor WeightedRandomSampler::order(std::int64_t epoch) const {
    check(!weights_.empty(), ErrorKind::state, "WeightedRandomSampler: it has been moved from");
    const auto drawn = [&] {
        return Tensor::from(options_.replacement ? with_replacement(epoch) : without_replacement(epoch),
                            {options_.num_samples});
    };
    return or_memory_error("WeightedRandomSampler", drawn, "for ", options_.num_samples, " samples");
}

}  // namespace mezzo::data
