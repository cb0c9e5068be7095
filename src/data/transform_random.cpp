// Random numbers of transforms.
#include <cmath>
#include <numbers>

#include "core/philox.h"
#include "mezzo/data/transforms.h"
#include "mezzo/error.h"

namespace mezzo::data {

// The first Philox block, of (seed, sample, epoch), is the key of the sample's own generator. Bit 63
// separates it from the blocks of the loader's order.
TransformRandom::TransformRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t sample,
                                 std::uint64_t stream) {
    const std::uint64_t high = (std::uint64_t(epoch) ^ stream << 48) | std::uint64_t(1) << 63;
    const PhiloxWords words = philox(seed, std::uint64_t(sample), high);
    key_ = std::uint64_t(words.v[0]) << 32 | words.v[1];
    high_ = std::uint64_t(words.v[2]) << 32 | words.v[3];
}

std::uint64_t TransformRandom::next() {
    const PhiloxWords words = philox(key_, counter_++, high_);
    return std::uint64_t(words.v[0]) << 32 | words.v[1];
}

double TransformRandom::uniform(double low, double high) {
    const double value = low + double(next() >> 11) * 0x1p-53 * (high - low);
    return value < high || low >= high ? value
                                       : std::nextafter(high, low);  // the sum may have been rounded up
}

std::int64_t TransformRandom::integer(std::int64_t low, std::int64_t high) {
    check(low < high, ErrorKind::value, "TransformRandom: no integer from ", low, " to below ", high);
    const std::uint64_t count = std::uint64_t(high) - std::uint64_t(low);
    return std::int64_t(std::uint64_t(low) + next() % count);  // bias below count / 2^64
}

// Returns the logarithm of a number with the distribution Gamma(shape, 1), by Marsaglia and Tsang (2000). A
// shape below 1 is reduced to shape + 1; the logarithm represents values that would underflow to 0 for a
// small shape.
double TransformRandom::log_gamma_variate(double shape) {
    const double boost = shape < 1 ? std::log(1 - uniform()) / shape : 0;
    const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    while (true) {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
        const double u = 1 - uniform(), v = std::pow(1 + c * normal, 3);
        if (v > 0 && std::log(u) < normal * normal / 2 + d - d * v + d * std::log(v))
            return std::log(d * v) + boost;
    }
}

double TransformRandom::beta(double alpha) {
    check(alpha > 0 && std::isfinite(alpha), ErrorKind::value, "TransformRandom: beta of ", alpha,
          "; it must be positive");
    const double a = log_gamma_variate(alpha), b = log_gamma_variate(alpha);
    if (std::isnan(b - a))
        return chance(0.5) ? 1 : 0;  // both infinite: alpha is so small that nothing is between
    return 1 / (1 + std::exp(b - a));
}

}  // namespace mezzo::data
