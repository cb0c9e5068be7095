// Transforms of whole batches: MixUp, CutMix, RandomChoice.
#include <algorithm>
#include <cmath>

#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/data/transforms.h"
#include "mezzo/ops.h"

namespace mezzo::data {

namespace {

void check_batch(const char* op, const Batch& batch, std::int64_t classes, double alpha) {
    check(classes > 0, ErrorKind::value, op, ": num_classes is ", classes, "; it must be positive");
    check(alpha > 0 && std::isfinite(alpha), ErrorKind::value, op, ": alpha is ", alpha,
          "; it must be positive");
    check(batch.x.defined() && batch.y.defined(), ErrorKind::value, op, ": the batch is undefined");
    check(is_floating(batch.x.dtype()), ErrorKind::dtype, op, ": x is ", batch.x.dtype(),
          "; it must be floating");
    check(batch.x.dim() >= 1 && batch.y.dim() >= 1 && batch.x.size(0) == batch.y.size(0), ErrorKind::shape,
          op, ": x ", batch.x.shape(), " and y ", batch.y.shape(), " differ in their first sizes");
}

// Returns float32 [n, classes], from class indices or from y that already has this shape.
Tensor soft_targets(const char* op, const Tensor& y, std::int64_t classes) {
    if (is_floating(y.dtype())) {
        check(y.dim() == 2 && y.size(1) == classes, ErrorKind::shape, op, ": y ", y.shape(), " is not [",
              y.size(0), ", ", classes, "], the probabilities of num_classes");
        return y.to(float32);
    }
    check(y.dtype() == int64 && y.dim() == 1, ErrorKind::dtype, op, ": y is ", y.dtype(), " ", y.shape(),
          "; it must be int64 [n] of classes, or floating [n, num_classes]");
    const Tensor result = zeros({y.size(0), classes}, {.device = cpu_device});
    const std::vector<std::int64_t> labels = y.to_vector<std::int64_t>();
    float* const probabilities = result.mutable_data<float>();
    for (std::size_t i = 0; i < labels.size(); ++i) {
        check(labels[i] >= 0 && labels[i] < classes, ErrorKind::value, op, ": class ", labels[i],
              " is not below num_classes, ", classes);
        probabilities[std::int64_t(i) * classes + labels[i]] = 1;
    }
    return result.to(y.device());
}

// Rotates the samples by one: sample i of the result is sample i - 1, and sample 0 is the last.
Tensor rolled(const Tensor& x) {
    const std::int64_t n = x.size(0);
    return n < 2 ? x : cat({x.slice(0, n - 1, n), x.slice(0, 0, n - 1)}, 0);
}

Tensor mixed(const Tensor& x, double lambda) { return lambda * x + (1 - lambda) * rolled(x); }

}  // namespace

Batch MixUp::operator()(const Batch& batch, TransformRandom& random) const {
    const NoGrad no_grad;
    check_batch("MixUp", batch, num_classes, alpha);
    const Tensor y = soft_targets("MixUp", batch.y, num_classes);
    const double lambda = random.beta(alpha);
    return {mixed(batch.x, lambda), mixed(y, lambda)};
}

Batch CutMix::operator()(const Batch& batch, TransformRandom& random) const {
    const NoGrad no_grad;
    check_batch("CutMix", batch, num_classes, alpha);
    check(batch.x.dim() == 4, ErrorKind::shape, "CutMix: x ", batch.x.shape(),
          " is not [n, height, width, channels]");
    const Tensor y = soft_targets("CutMix", batch.y, num_classes);
    const std::int64_t height = batch.x.size(1), width = batch.x.size(2);
    if (batch.x.numel() == 0) return {batch.x, y};
    const double side = 0.5 * std::sqrt(1 - random.beta(alpha));
    const std::int64_t x = random.integer(0, width), y0 = random.integer(0, height);
    const auto half_width = std::int64_t(side * double(width)),
               half_height = std::int64_t(side * double(height));
    const std::int64_t left = std::max(x - half_width, std::int64_t(0)),
                       right = std::min(x + half_width, width);
    const std::int64_t top = std::max(y0 - half_height, std::int64_t(0)),
                       bottom = std::min(y0 + half_height, height);
    const Tensor result = batch.x.clone();
    if (right > left && bottom > top)
        result.slice(1, top, bottom)
            .slice(2, left, right)
            .copy_(rolled(batch.x.slice(1, top, bottom).slice(2, left, right)));
    const double lambda = 1 - double((right - left) * (bottom - top)) / double(width * height);
    return {result, mixed(y, lambda)};
}

Batch RandomChoice::operator()(const Batch& batch, TransformRandom& random) const {
    check(!choices.empty(), ErrorKind::value, "RandomChoice: no choices");
    return choices[std::size_t(random.integer(0, std::int64_t(choices.size())))](batch, random);
}

}  // namespace mezzo::data
