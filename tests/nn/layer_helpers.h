// Comparison of layers with the numbers that tools/reference_layers.py writes to tests/reference/layers.h.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "mezzo/mezzo.h"
#include "tests/support/support.h"

namespace mezzo::test {

inline Tensor waves(const Shape& shape, double phase, double scale = 1) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(scale * std::sin(1.3 * double(i) + phase));
    return tensor_of(values, shape, float64);
}

template <class Net> Net filled(Net net) {
    const NoGrad plain;
    net.to(float64);
    double j = 0;
    for (const auto& [name, value] : net.state_dict()) value.copy_(waves(value.shape(), j++, 0.7));
    return net;
}

inline Tensor leaf(const Shape& shape, double phase, double scale = 1) {
    return waves(shape, phase, scale).set_requires_grad();
}

// Compares results, gradients of the inputs, and weighted sums of the parameters' gradients, in float64. The
// tolerance is that of PyTorch's hardsigmoid, whose 1 / 6 is a float32.
template <std::size_t n> void check_summary(const double (&reference)[n], const nn::Module& net,
                                            const Tensors& inputs, const Tensors& results) {
    Tensor loss = zeros({}, {.dtype = float64});
    for (const Tensor& y : results)
        if (y.requires_grad()) loss = loss + sum(y * waves(y.shape(), 0.25));
    loss.backward();
    std::vector<double> values;
    const auto append = [&](const Tensor& x) {
        const std::vector<double> more = doubles(x);
        values.insert(values.end(), more.begin(), more.end());
    };
    for (const Tensor& y : results) append(y);
    for (const Tensor& x : inputs) append(x.grad());
    for (const Tensor& p : net.parameters()) append(sum(p.grad() * waves(p.shape(), 0.4)));
    CAPTURE(net.to_string());
    CHECK(difference(values, std::vector<double>(reference, reference + n), {1e-7, 1e-9}) == "");
}

}  // namespace mezzo::test
