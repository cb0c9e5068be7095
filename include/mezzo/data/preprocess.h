// Preprocessing: train/test splits and scaling of features.
//
//   const auto [train, test] = data::train_test_split(data::Dataset{x, labels}, {.test_size = 0.2});
//   data::StandardScaler features;
//   features.fit(train.x);
//   y = net(features.transform(test.x));
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/data/loader.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

struct TrainTestSplitOptions {
    double test_size = 0.25;  // share of the test samples, in (0, 1); their number is rounded up
    bool shuffle = true;      // false: the last samples are the test samples
    bool stratify = false;    // every class has its share in both parts; needs shuffle
    std::uint64_t seed = 0;
};
struct SplitIndices {
    std::vector<std::int64_t> train, test;
};
// Splits n samples into two parts, neither of them empty. Error(value) for n below 2, for a test_size outside
// of (0, 1) or that leaves no sample for the training, and for stratify, which needs labels.
[[nodiscard]] SplitIndices train_test_split(std::int64_t n, const TrainTestSplitOptions& options = {});

struct SplitDataset {
    Dataset train, test;
};
// Splits a data set, with copies of the samples. Error(value) also for stratify where a class has one sample
// only or y is not int64 [n].
[[nodiscard]] SplitDataset train_test_split(const Dataset& dataset,
                                            const TrainTestSplitOptions& options = {});

// Base class of scalers: (x - shift) / scale for each feature, the last dimension. Fit it on the training
// data, and save its state with the model.
class FeatureScaler {
public:
    // float64 [features] on the CPU; undefined before fit().
    [[nodiscard]] const Tensor& shift() const { return shift_; }
    [[nodiscard]] const Tensor& scale() const { return scale_; }
    // The scaled features, in x's dtype on x's device. Throws Error(state) before fit() or load_state_dict(),
    // Error(shape) for another number of features, Error(dtype) unless x is floating.
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

// Scales features to mean 0 and standard deviation 1 (of the population); a constant feature is only shifted.
// fit() takes [n, features] with n >= 1 and leaves NaN out; a feature that is NaN throughout keeps shift 0
// and scale 1. Error(shape) for other shapes, Error(value) for a feature with an infinite value.
class StandardScaler : public FeatureScaler {
public:
    void fit(const Tensor& x);
};

// Scales features to [0, 1] over the data of fit(), whose input is as for StandardScaler.
class MinMaxScaler : public FeatureScaler {
public:
    void fit(const Tensor& x);
};

}  // namespace mezzo::data

#pragma GCC visibility pop
