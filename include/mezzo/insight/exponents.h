// Exponent histograms: shares of a tensor's elements that a narrower dtype would lose, and the scale that
// fits.
//
//   const insight::ExponentHistogram histogram(weight.grad());
//   std::cout << histogram.to_string(float16) << histogram.fitting_scale(float16) << '\n';
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/insight/insight.h"

#pragma GCC visibility push(default)

namespace mezzo::insight {

// Histogram of the binary exponents of a floating tensor. Shares refer to the elements that are finite and
// not zero, and are 0 if there are none. They count whole exponents, so an element within one rounding of a
// limit may be counted on its other side.
class ExponentHistogram {
public:
    // Waits for the device. Error(dtype) unless x is floating, Error(value) if it is undefined.
    explicit ExponentHistogram(const Tensor& x);

    [[nodiscard]] const Range& range() const { return range_; }
    // The smallest and the largest exponent that occurs; lowest() > highest() if none does.
    [[nodiscard]] int lowest() const { return lowest_; }
    [[nodiscard]] int highest() const { return highest_; }
    // Elements with 2^exponent <= |x| < 2^(exponent + 1).
    [[nodiscard]] std::int64_t count(int exponent) const;

    // The shares of elements that, times `factor` and rounded to `dtype`, are 0; are subnormal, with fewer
    // significant bits; are infinite. Error(dtype) unless floating, Error(value) unless the factor is
    // positive.
    [[nodiscard]] double underflow(Dtype dtype, double factor = 1) const;
    [[nodiscard]] double subnormal(Dtype dtype, double factor = 1) const;
    [[nodiscard]] double overflow(Dtype dtype, double factor = 1) const;
    // The largest power of two by which the largest finite element may be multiplied so that it does not
    // exceed 1 / headroom of the dtype's largest number; 0 if all elements are 0. Error(value) for a headroom
    // below 1.
    [[nodiscard]] double fitting_scale(Dtype dtype, double headroom = 2) const;

    // The histogram as lines of text, from the highest exponent down: exponent, count, a bar, and where the
    // subnormal numbers of `dtype` and its zero begin.
    [[nodiscard]] std::string to_string(Dtype dtype = Dtype::float16, double factor = 1) const;

private:
    double share(double from, double to) const;
    Range range_;
    int lowest_ = 0, highest_ = -1;
    std::vector<std::int64_t> counts_;  // from lowest_ on
};

}  // namespace mezzo::insight

#pragma GCC visibility pop
