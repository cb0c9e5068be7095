// Data augmentation: transforms of images and batches for a DataLoader. docs/guide/images.md has examples.
//
//   data::DataLoader loader(data::cifar10({.directory = "cifar-10"}),
//                           {.shuffle = true,
//                            .transforms = {data::RandomCrop{.size = 32, .padding = 4},
//                                           data::RandomHorizontalFlip{}},
//                            .batch_transforms = {data::MixUp{.num_classes = 10}}});
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/shared.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::data {

// One value for all channels, or one for each: .mean = 0.5, or .mean = {0.485, 0.456, 0.406}.
class PerChannel {
public:
    PerChannel(double value) : values_{value} {}
    PerChannel(std::initializer_list<double> values) : values_(values) {}
    PerChannel(std::vector<double> values) : values_(std::move(values)) {}
    [[nodiscard]] const std::vector<double>& values() const { return values_; }
    [[nodiscard]] double operator[](std::int64_t channel) const {
        return values_[values_.size() == 1 ? 0 : static_cast<std::size_t>(channel)];
    }
    // Whether there is a value for each of so many channels.
    [[nodiscard]] bool fits(std::int64_t channels) const {
        return values_.size() == 1 || static_cast<std::int64_t>(values_.size()) == channels;
    }

private:
    std::vector<double> values_;
};

// Random numbers of one sample (or batch) in one epoch: Philox keyed by seed, epoch and the sample's index in
// its data set. They depend on nothing else, so that any number of threads, and a resumed run, get the same
// numbers.
class TransformRandom {
public:
    TransformRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t sample, std::uint64_t stream = 0);
    [[nodiscard]] double uniform(double low = 0, double high = 1);            // low <= result < high
    [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high);  // low, ..., high - 1
    [[nodiscard]] bool chance(double p) { return uniform() < p; }             // true with probability p
    [[nodiscard]] double beta(double alpha);  // of the distribution Beta(alpha, alpha), alpha > 0

private:
    [[nodiscard]] std::uint64_t next();
    [[nodiscard]] double log_gamma_variate(double shape);
    std::uint64_t key_, high_, counter_ = 0;
};

namespace detail {

struct ErasedTransform : mezzo::detail::SharedObject {
    virtual Tensor apply(const Tensor& image, TransformRandom& random) const = 0;
};
template <class F> struct TransformOf final : ErasedTransform {
    explicit TransformOf(F given) : function(std::move(given)) {}
    Tensor apply(const Tensor& image, TransformRandom& random) const override {
        if constexpr (std::invocable<const F&, const Tensor&, TransformRandom&>)
            return function(image, random);
        else
            return function(image);
    }
    F function;
};

}  // namespace detail

// Any function from an image to an image: one of those below, or a user's own that takes (const Tensor&
// image) or (const Tensor& image, TransformRandom& random). An image is uint8 [height, width, channels] on
// the CPU. A DataLoader calls it from several threads at once.
class Transform {
public:
    template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, Transform> &&
             (std::invocable<const F&, const Tensor&, TransformRandom&> ||
              std::invocable<const F&, const Tensor&>)) Transform(F function)
        : function_(new detail::TransformOf<F>(std::move(function))) {}
    [[nodiscard]] Tensor operator()(const Tensor& image, TransformRandom& random) const {
        return function_->apply(image, random);
    }

private:
    mezzo::detail::SharedHandle<detail::ErasedTransform> function_;
};

// Height and width, or one number for both: .size = 224, or .size = {192, 256}.
struct ImageSize {
    ImageSize() = default;
    ImageSize(std::int64_t side) : height(side) {}
    ImageSize(std::int64_t rows, std::int64_t columns) : height(rows), width(columns) {}
    std::int64_t height = 0, width = 0;  // width 0: one number was given
};
struct Interval {
    double low = 0, high = 1;
};

// The transforms have torchvision's names, the options that are there have torchvision's meaning, and the
// arithmetic on bytes is PIL's. All throw
// Error(dtype), Error(shape) or Error(device) for what is no image, and Error(value) for options out of
// range. Images may have any number of channels unless a line below says otherwise.

// Crops a window at a random position, after padding the image with `padding` pixels of colour `fill` on each
// side. Throws Error(shape) if the padded image is smaller than the window. pad_if_needed instead pads both
// sides of a dimension that is too small by the missing number of pixels.
struct RandomCrop {
    ImageSize size = {};
    std::int64_t padding = 0;
    PerChannel fill = 0;  // 0 to 255
    bool pad_if_needed = false;
    [[nodiscard]] Tensor operator()(const Tensor& image, TransformRandom& random) const;
};

// Crops the window in the middle; an image that is smaller is padded with zeros.
struct CenterCrop {
    ImageSize size = {};
    [[nodiscard]] Tensor operator()(const Tensor& image) const;
};

// Mirrors the image left to right, with probability p.
struct RandomHorizontalFlip {
    double p = 0.5;
    [[nodiscard]] Tensor operator()(const Tensor& image, TransformRandom& random) const;
};

// Resizes by bilinear interpolation. A smaller result is averaged over all pixels that fall into one of its
// own (antialias), as in PIL: in bytes, with weights rounded to 22 bits, columns first: bytes are equal to
// those of PIL where it resizes columns first, too, and may differ by rounding where it resizes rows first.
// One number is the length of the shorter side, and the longer keeps the proportion, rounded down.
struct Resize {
    ImageSize size = {};
    [[nodiscard]] Tensor operator()(const Tensor& image) const;
};

// Crops a window of random area (a share of the image) and random proportion (width / height), and resizes it
// to `size`. After ten windows that do not fit it takes the largest central one whose proportion is within
// the limits.
struct RandomResizedCrop {
    ImageSize size = {};
    Interval scale = {0.08, 1};
    Interval ratio = {3.0 / 4, 4.0 / 3};
    [[nodiscard]] Tensor operator()(const Tensor& image, TransformRandom& random) const;
};

// Multiplies brightness, contrast and saturation by a factor from max(0, 1 - v) to 1 + v, and rotates the hue
// by -hue to hue of the whole circle (hue <= 0.5), in random order. For 1 or 3 channels; saturation and hue
// do not change images with 1 channel.
struct ColorJitter {
    double brightness = 0, contrast = 0, saturation = 0, hue = 0;
    [[nodiscard]] Tensor operator()(const Tensor& image, TransformRandom& random) const;
};

// RandAugment (Cubuk et al., arXiv 1909.13719): num_ops operations, each drawn from identity, shear,
// translation, rotation, brightness, color, contrast, sharpness, posterize, solarize, autocontrast and
// equalize, all of one magnitude out of num_magnitude_bins. Pixels from outside the image get colour `fill`;
// moved pixels take the nearest one. For 1 or 3 channels.
struct RandAugment {
    int num_ops = 2;
    int magnitude = 9;
    int num_magnitude_bins = 31;
    PerChannel fill = 0;
    [[nodiscard]] Tensor operator()(const Tensor& image, TransformRandom& random) const;
};

// Fills, with probability p, a rectangle of random area (a share of the image) and proportion (height /
// width) with one colour (Zhong et al., arXiv 1708.04896). After ten rectangles that do not fit, the image is
// not changed.
struct RandomErasing {
    double p = 0.5;
    Interval scale = {0.02, 0.33};
    Interval ratio = {0.3, 3.3};
    PerChannel value = 0;  // 0 to 255
    [[nodiscard]] Tensor operator()(const Tensor& image, TransformRandom& random) const;
};

// A batch of a DataLoader. const auto& [x, y] = batch; binds x and y, without the weight.
struct Batch {
    Tensor x;
    Tensor y;
    // Weight of this rank's mean loss in the mean over all ranks: 1 if all ranks have equally many rows of
    // the batch, and always in a training with one process.
    double weight = 1;
};
template <class F> void each_tensor(Batch& batch, F&& f) {
    f(batch.x);
    f(batch.y);
}
template <std::size_t I> [[nodiscard]] const Tensor& get(const Batch& batch) {
    static_assert(I < 2);
    if constexpr (I == 0)
        return batch.x;
    else
        return batch.y;
}
template <std::size_t I> [[nodiscard]] Tensor& get(Batch& batch) {
    return const_cast<Tensor&>(get<I>(std::as_const(batch)));
}
template <std::size_t I> [[nodiscard]] Tensor&& get(Batch&& batch) { return std::move(get<I>(batch)); }

namespace detail {

struct ErasedBatchTransform : mezzo::detail::SharedObject {
    virtual Batch apply(const Batch& batch, TransformRandom& random) const = 0;
};
template <class F> struct BatchTransformOf final : ErasedBatchTransform {
    explicit BatchTransformOf(F given) : function(std::move(given)) {}
    Batch apply(const Batch& batch, TransformRandom& random) const override {
        return function(batch, random);
    }
    F function;
};

}  // namespace detail

// Any function from a batch to a batch: MixUp, CutMix, or a user's own.
class BatchTransform {
public:
    template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, BatchTransform> &&
             std::invocable<const F&, const Batch&, TransformRandom&>) BatchTransform(F function)
        : function_(new detail::BatchTransformOf<F>(std::move(function))) {}
    [[nodiscard]] Batch operator()(const Batch& batch, TransformRandom& random) const {
        return function_->apply(batch, random);
    }

private:
    mezzo::detail::SharedHandle<detail::ErasedBatchTransform> function_;
};

// MixUp and CutMix mix each sample with the one before it in the batch, the first with the last, by a weight
// lambda drawn from Beta(alpha, alpha) for the whole batch. x: floating [n, ...]; y: int64 [n] of classes, or
// float32 [n, num_classes]. The result's y is float32 [n, num_classes], what cross_entropy() takes as
// probabilities. They throw Error(value) unless alpha and num_classes are positive and for a class that is
// not below num_classes, and Error(shape) or Error(dtype) for another batch.

// lambda x + (1 - lambda) x' (Zhang et al., arXiv 1710.09412).
struct MixUp {
    std::int64_t num_classes = 0;
    double alpha = 1;
    [[nodiscard]] Batch operator()(const Batch& batch, TransformRandom& random) const;
};

// Replaces a rectangle of x by that of x'. The rectangle's share of the image is 1 - lambda before it is cut
// off at the border; lambda is then set to 1 minus its real share (Yun et al., arXiv 1905.04899). x: [n,
// height, width, channels].
struct CutMix {
    std::int64_t num_classes = 0;
    double alpha = 1;
    [[nodiscard]] Batch operator()(const Batch& batch, TransformRandom& random) const;
};

// Applies one of several transforms, chosen with equal probability, to a whole batch:
// RandomChoice{{MixUp{...}, CutMix{...}}}.
struct RandomChoice {
    std::vector<BatchTransform> choices = {};
    [[nodiscard]] Batch operator()(const Batch& batch, TransformRandom& random) const;
};

// Normalises uint8 images [..., channels]: (value / 255 - mean) / stddev, computed in float64. Throws
// Error(dtype) unless x is uint8 and dtype floating, Error(value) for a stddev that is not positive, and
// Error(shape) where mean or stddev has neither one value nor as many as x has channels.
struct NormalizeOptions {
    PerChannel mean = 0;
    PerChannel stddev = 1;
    Dtype dtype = float32;
};
[[nodiscard]] Tensor normalize(const Tensor& x, const NormalizeOptions& options);

}  // namespace mezzo::data

// For structured bindings of x and y.
template <> struct std::tuple_size<mezzo::data::Batch> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I> struct std::tuple_element<I, mezzo::data::Batch> { using type = mezzo::Tensor; };

#pragma GCC visibility pop
