#include "mezzo/data/preprocess.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "core/memory/memory_error.h"
#include "data/epoch_order.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::data {

namespace {

using Indices = std::vector<std::int64_t>;

void check_options(std::int64_t n, const TrainTestSplitOptions& options) {
    check(options.test_size > 0 && options.test_size < 1, ErrorKind::value, "train_test_split: test_size is ",
          options.test_size, "; it is a share between 0 and 1");
    check(n >= 2, ErrorKind::value, "train_test_split: ", n, n == 1 ? " sample" : " samples",
          " cannot be in two parts");
    check(!options.stratify || options.shuffle, ErrorKind::value, "train_test_split: stratify needs shuffle");
}

std::int64_t test_count(std::int64_t n, double share) {
    const auto count = std::int64_t(std::ceil(double(n) * share));
    check(count < n, ErrorKind::value, "train_test_split: test_size ", share, " of ", n,
          " samples leaves none for the training");
    return count;
}

// Returns the first samples of an order, with an equal share of each class: the test samples.
Indices stratified_tests(const Indices& order, const Indices& labels, double share) {
    std::map<std::int64_t, Indices> of_class;
    for (const std::int64_t i : order) of_class[labels[std::size_t(i)]].push_back(i);
    Indices tests;
    for (const auto& [label, samples] : of_class) {
        check(samples.size() >= 2, ErrorKind::value, "train_test_split: class ", label,
              " has one sample, and stratify needs two");
        const std::int64_t n = std::int64_t(samples.size());
        const std::int64_t count = std::clamp<std::int64_t>(std::llround(double(n) * share), 1, n - 1);
        tests.insert(tests.end(), samples.begin(), samples.begin() + count);
    }
    return tests;
}

SplitIndices split(std::int64_t n, const TrainTestSplitOptions& options, const Indices* labels) {
    Indices order;
    if (options.shuffle) {
        order = permutation(n, options.seed, 0).to_vector<std::int64_t>();
    } else {
        order.resize(static_cast<std::size_t>(n));
        std::iota(order.begin(), order.end(), std::int64_t{0});
    }
    SplitIndices result;
    if (labels != nullptr) {
        result.test = stratified_tests(order, *labels, options.test_size);
        std::vector<bool> is_test(static_cast<std::size_t>(n));
        for (const std::int64_t i : result.test) is_test[std::size_t(i)] = true;
        for (const std::int64_t i : order)
            if (!is_test[std::size_t(i)]) result.train.push_back(i);
        return result;
    }
    const std::int64_t tests = test_count(n, options.test_size);
    const auto middle = options.shuffle ? order.begin() + tests : order.end() - tests;
    result.test.assign(options.shuffle ? order.begin() : middle, options.shuffle ? middle : order.end());
    result.train.assign(options.shuffle ? middle : order.begin(), options.shuffle ? order.end() : middle);
    return result;
}

Dataset chosen(const Dataset& dataset, const Indices& indices) {
    const Tensor index = Tensor::from(indices, {std::int64_t(indices.size())});
    return {index_select(dataset.x, 0, index), index_select(dataset.y, 0, index)};
}

// Statistics of a feature for fit(), without NaN.
struct FeatureStatistics {
    double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low, squares = 0;
    std::int64_t count = 0;
    double mean() const { return sum / double(count); }
};

std::vector<FeatureStatistics> ranges_of(const char* op, const Tensor& x) {
    check(x.dim() == 2 && x.size(0) >= 1, ErrorKind::shape, op, ": x is ", x.shape(),
          "; it must be [n, features] with n of at least 1");
    const std::vector<double> values = x.to_vector<double>();
    std::vector<FeatureStatistics> ranges(static_cast<std::size_t>(x.size(1)));
    const auto each = [&](auto&& f) {
        for (std::size_t i = 0; i < values.size(); ++i)
            if (!std::isnan(values[i])) f(ranges[i % ranges.size()], values[i]);
    };
    each([](FeatureStatistics& r, double v) {
        r.sum += v;
        r.low = std::min(r.low, v);
        r.high = std::max(r.high, v);
        ++r.count;
    });
    each([](FeatureStatistics& r, double v) { r.squares += (v - r.mean()) * (v - r.mean()); });
    return ranges;
}

void check_state(const StateDict& state) {
    const bool named = state.size() == 2 && state[0].first == "shift" && state[1].first == "scale";
    check(named && state[0].second.defined() && state[1].second.defined(), ErrorKind::value,
          "FeatureScaler: its state is \"shift\" and \"scale\"");
    const Tensor &shift = state[0].second, &scale = state[1].second;
    check(shift.dim() == 1 && shift.shape() == scale.shape(), ErrorKind::value, "FeatureScaler: shift ",
          shift.shape(), " and scale ", scale.shape(), " must both be [features]");
    for (const double v : scale.to_vector<double>())
        check(std::isfinite(v) && v != 0, ErrorKind::value, "FeatureScaler: a scale is ", v);
    for (const double v : shift.to_vector<double>())
        check(std::isfinite(v), ErrorKind::value, "FeatureScaler: a shift is ", v);
}

}  // namespace

SplitIndices train_test_split(std::int64_t n, const TrainTestSplitOptions& options) {
    check_options(n, options);
    check(!options.stratify, ErrorKind::value, "train_test_split: stratify needs labels: pass a Dataset");
    return or_memory_error(
        "train_test_split", [&] { return split(n, options, nullptr); }, "for ", n, " indices");
}

SplitDataset train_test_split(const Dataset& dataset, const TrainTestSplitOptions& options) {
    check(dataset.x.defined() && dataset.y.defined() && dataset.x.dim() >= 1 && dataset.y.dim() >= 1 &&
              dataset.x.size(0) == dataset.y.size(0),
          ErrorKind::value, "train_test_split: x and y must be defined and have as many rows");
    const std::int64_t n = dataset.size();
    check_options(n, options);
    Indices labels;
    if (options.stratify) {
        check(dataset.y.dtype() == int64 && dataset.y.dim() == 1, ErrorKind::value,
              "train_test_split: stratify needs y int64 [n], and it is ", dataset.y.dtype(), " ",
              dataset.y.shape());
        labels = dataset.y.to_vector<std::int64_t>();
    }
    const NoGrad no_grad;
    const SplitIndices parts = split(n, options, options.stratify ? &labels : nullptr);
    return {chosen(dataset, parts.train), chosen(dataset, parts.test)};
}

void FeatureScaler::set(std::vector<double> shift, std::vector<double> scale) {
    const auto n = std::int64_t(shift.size());
    for (std::size_t i = 0; i < shift.size(); ++i)
        check(std::isfinite(shift[i]) && std::isfinite(scale[i]), ErrorKind::value, "FeatureScaler: feature ",
              i, " has shift ", shift[i], " and scale ", scale[i],
              "; fit() needs finite values with finite differences, or NaN, which is left out");
    shift_ = Tensor::from(shift, {n});
    scale_ = Tensor::from(scale, {n});
}

namespace {

void check_input(const Tensor& x, const Tensor& shift) {
    check(shift.defined(), ErrorKind::state, "FeatureScaler: call fit() or load_state_dict() first");
    check(is_floating(x.dtype()), ErrorKind::dtype, "FeatureScaler: x is ", x.dtype(), ", not floating");
    check(x.dim() >= 1 && x.size(-1) == shift.size(0), ErrorKind::shape, "FeatureScaler: x is ", x.shape(),
          "; the last dimension must be ", shift.size(0));
}

}  // namespace

// Computes in float64, so that a large mean costs no digits, and rounds once.
Tensor FeatureScaler::transform(const Tensor& x) const {
    check_input(x, shift_);
    const Tensor wide = x.to(float64);
    return ((wide - shift_.to(x.device())) / scale_.to(x.device())).to(x.dtype());
}

Tensor FeatureScaler::inverse_transform(const Tensor& x) const {
    check_input(x, shift_);
    const Tensor wide = x.to(float64);
    return (wide * scale_.to(x.device()) + shift_.to(x.device())).to(x.dtype());
}

StateDict FeatureScaler::state_dict() const {
    if (!shift_.defined()) return {};
    return {{"shift", shift_.clone()}, {"scale", scale_.clone()}};
}

void FeatureScaler::load_state_dict(const StateDict& state) {
    if (state.empty()) {
        shift_ = scale_ = Tensor();
        return;
    }
    StateDict ordered = state;
    if (ordered.size() == 2 && ordered[0].first == "scale") std::swap(ordered[0], ordered[1]);
    check_state(ordered);
    set(ordered[0].second.to_vector<double>(), ordered[1].second.to_vector<double>());
}

void StandardScaler::fit(const Tensor& x) {
    std::vector<double> shift, scale;
    for (const FeatureStatistics& r : ranges_of("StandardScaler", x)) {
        const double deviation = r.count > 0 ? std::sqrt(r.squares / double(r.count)) : 0;
        shift.push_back(r.count > 0 ? r.mean() : 0);
        scale.push_back(deviation > 0 && r.low < r.high ? deviation : 1);
    }
    set(std::move(shift), std::move(scale));
}

void MinMaxScaler::fit(const Tensor& x) {
    std::vector<double> shift, scale;
    for (const FeatureStatistics& r : ranges_of("MinMaxScaler", x)) {
        shift.push_back(r.count > 0 ? r.low : 0);
        scale.push_back(r.high > r.low ? r.high - r.low : 1);
    }
    set(std::move(shift), std::move(scale));
}

}  // namespace mezzo::data
