#include "mezzo/insight/exponents.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "insight/ranges.h"
#include "kernels/dispatch.h"
#include "kernels/range.h"

namespace mezzo::insight {

namespace {

const KernelOf<kernels::ExponentCounts> exponent_counts;

// The exponents of a dtype's largest, smallest normal and smallest numbers.
struct Limits {
    int largest, smallest_normal, smallest;
};
Limits limits_of(Dtype dtype) {
    check(is_floating(dtype), ErrorKind::dtype, "ExponentHistogram: ", dtype, " is no floating dtype");
    const DtypeInfo& info = dtype_info(dtype);
    const int largest = std::ilogb(info.max), fraction = -std::ilogb(info.epsilon);
    return {largest, 1 - largest, 1 - largest - fraction};
}

double exponent_of_factor(double factor) {
    check(factor > 0 && std::isfinite(factor), ErrorKind::value, "ExponentHistogram: the factor is ", factor,
          "; it must be positive");
    return std::log2(factor);
}

}  // namespace

ExponentHistogram::ExponentHistogram(const Tensor& x) : range_(range_of(x)) {
    using kernels::ExponentCounts;
    const Tensor bins = empty({ExponentCounts::bins}, {.dtype = int64, .device = x.device()});
    exponent_counts({{in_one_piece(x)}}, {}, bins);
    const std::vector<std::int64_t> all = bins.to_vector<std::int64_t>();
    const auto occurs = [](std::int64_t n) { return n != 0; };
    const auto first = std::find_if(all.begin(), all.end(), occurs);
    if (first == all.end()) return;
    const auto end = std::find_if(all.rbegin(), all.rend(), occurs).base();
    counts_.assign(first, end);
    lowest_ = ExponentCounts::lowest + int(first - all.begin());
    highest_ = lowest_ + int(counts_.size()) - 1;
}

std::int64_t ExponentHistogram::count(int exponent) const {
    return exponent < lowest_ || exponent > highest_ ? 0 : counts_[std::size_t(exponent - lowest_)];
}

// Returns the fraction of the elements with from <= exponent < to.
double ExponentHistogram::share(double from, double to) const {
    std::int64_t inside = 0, all = 0;
    for (int e = lowest_; e <= highest_; ++e) {
        all += count(e);
        if (e >= from && e < to) inside += count(e);
    }
    return all == 0 ? 0 : double(inside) / double(all);
}

// Half of the smallest number rounds to zero; a larger number does not.
double ExponentHistogram::underflow(Dtype dtype, double factor) const {
    return share(-HUGE_VAL, limits_of(dtype).smallest - 1 - exponent_of_factor(factor));
}
double ExponentHistogram::subnormal(Dtype dtype, double factor) const {
    const Limits limits = limits_of(dtype);
    const double by = exponent_of_factor(factor);
    return share(limits.smallest - 1 - by, limits.smallest_normal - by);
}
double ExponentHistogram::overflow(Dtype dtype, double factor) const {
    return share(limits_of(dtype).largest + 1 - exponent_of_factor(factor), HUGE_VAL);
}

double ExponentHistogram::fitting_scale(Dtype dtype, double headroom) const {
    static_cast<void>(limits_of(dtype));
    check(headroom >= 1, ErrorKind::value, "ExponentHistogram.fitting_scale: headroom is ", headroom,
          "; it must be at least 1");
    if (range_.max_abs == 0) return 0;
    return std::exp2(std::floor(std::log2(dtype_info(dtype).max / headroom) - std::log2(range_.max_abs)));
}

std::string ExponentHistogram::to_string(Dtype dtype, double factor) const {
    const Limits limits = limits_of(dtype);
    const double by = exponent_of_factor(factor);
    std::int64_t most = 1;
    for (const std::int64_t n : counts_) most = std::max(most, n);
    std::string text;
    for (int e = highest_; e >= lowest_; --e) {
        const char* fate = "";
        if (e + by > limits.largest)
            fate = "  infinite";
        else if (e + by < limits.smallest - 1)
            fate = "  zero";
        else if (e + by < limits.smallest_normal)
            fate = "  subnormal";
        const auto length = std::size_t(std::ceil(40.0 * double(count(e)) / double(most)));
        const std::string bar(length, '#');
        text += fmt::format("2^{:<5} {:>12} {}{}\n", e, count(e),
                            *fate != '\0' ? fmt::format("{:<40}", bar) : bar, fate);
    }
    text += fmt::format("zero {:>15}, inf {}, NaN {}, the largest {:.4g}\n", range_.zeros, range_.infs,
                        range_.nans, range_.max_abs);
    return text;
}

}  // namespace mezzo::insight
