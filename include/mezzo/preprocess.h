// Before the training: data sets in two parts, and features of comparable size.
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/data.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

struct TrainTestSplitOptions {
    double test_size = 0.25;  // the share of the tests, in (0, 1), rounded up to samples
    bool shuffle = true;      // false: the tests are the last samples
    bool stratify = false;    // every class has its share in both parts; needs shuffle
    std::uint64_t seed = 0;
};
struct SplitIndices {
    std::vector<std::int64_t> train, test;
};
// Each of n samples in one of two parts, neither of them empty. Error(value) for n below 2, for a test_size
// outside of (0, 1) or that leaves no sample for the training, and for stratify, which needs labels.
[[nodiscard]] SplitIndices train_test_split(std::int64_t n, const TrainTestSplitOptions& options = {});

struct SplitDataset {
    Dataset train, test;
};
// The same with copies of the samples. Error(value) also for stratify where a class has one sample only or y
// is not int64 [n].
[[nodiscard]] SplitDataset train_test_split(const Dataset& dataset,
                                            const TrainTestSplitOptions& options = {});

// (x - shift) / scale for each feature, the last dimension. What is fitted on the training data is saved with
// the model.
class FeatureScaler {
public:
    // float64 [features] on the CPU; undefined before fit().
    [[nodiscard]] const Tensor& shift() const { return shift_; }
    [[nodiscard]] const Tensor& scale() const { return scale_; }
    // In x's dtype on x's device. Error(state) before fit() or load_state_dict(), Error(shape) for another
    // number of features, Error(dtype) unless x is floating.
    [[nodiscard]] Tensor transform(const Tensor& x) const;
    [[nodiscard]] Tensor inverse_transform(const Tensor& x) const;
    // "shift" and "scale"; empty before fit().
    [[nodiscard]] StateDict state_dict() const;
    // Throws, with nothing changed, Error(value) for other names, shapes that differ, and a scale that is 0
    // or not finite.
    void load_state_dict(const StateDict& state);

protected:
    void set(std::vector<double> shift, std::vector<double> scale);

private:
    Tensor shift_, scale_;
};

// Mean 0 and standard deviation 1 (of the population); a feature that is constant is only shifted. fit()
// takes [n, features] with n >= 1 and leaves NaN out; a feature that is NaN throughout keeps shift 0 and
// scale 1. Error(shape) for other shapes, Error(value) for a feature with an infinite value.
class StandardScaler : public FeatureScaler {
public:
    void fit(const Tensor& x);
};

// From 0 to 1 over the data of fit(), which takes the same as that of StandardScaler.
class MinMaxScaler : public FeatureScaler {
public:
    void fit(const Tensor& x);
};

}  // namespace mezzo::data

#pragma GCC visibility pop
