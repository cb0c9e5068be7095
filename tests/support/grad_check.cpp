#include "tests/support/grad_check.h"

#include <cmath>

#include "mezzo/autograd.h"
#include "tests/support/support.h"

namespace mezzo::test {

namespace {

Tensor random_like(const Tensor& x, std::uint64_t seed) {
    return tensor_of(random_values(x.numel(), seed, Domain::any), x.shape(), float64);
}

double inner_product(const Tensor& a, const Tensor& b) {
    const std::vector<double> x = doubles(a), y = doubles(b);
    double total = 0;
    for (std::size_t i = 0; i < x.size(); ++i) total += x[i] * y[i];
    return total;
}

bool varies(const Tensor& x) { return x.dtype() == float64; }

// Fresh leaves with the inputs' values, moved by `step` along the directions.
Tensors moved(const Tensors& inputs, const Tensors& directions, double step) {
    NoGrad plain;
    Tensors result;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        result.push_back(varies(inputs[i]) ? inputs[i] + directions[i] * step : inputs[i]);
    return result;
}

Tensors directions_for(const Tensors& inputs, std::uint64_t seed) {
    Tensors directions;
    for (const Tensor& x : inputs) directions.push_back(varies(x) ? random_like(x, seed++) : Tensor());
    return directions;
}

Tensors as_leaves(const Tensors& inputs) {
    Tensors leaves;
    for (const Tensor& x : inputs) {
        leaves.push_back(x.detach().clone());
        if (varies(x)) leaves.back().set_requires_grad();
    }
    return leaves;
}

Tensors varying(const Tensors& inputs) {
    Tensors result;
    for (const Tensor& x : inputs)
        if (varies(x)) result.push_back(x);
    return result;
}

double along(const Tensors& gradients, const Tensors& directions) {
    double total = 0;
    std::size_t g = 0;
    for (const Tensor& d : directions) {
        if (!d.defined()) continue;
        const Tensor& gradient = gradients[g++];
        if (gradient.defined()) total += inner_product(gradient, d);
    }
    return total;
}

std::string result(const char* what, double gradient, double difference) {
    if (std::abs(gradient - difference) <= 2e-6 * (1 + std::abs(difference))) return {};
    return std::string(what) + ": the derivative along a direction is " + std::to_string(gradient) +
           ", differences of values give " + std::to_string(difference);
}

constexpr double step = 1e-5;

// Function of the inputs and, last, of v: sum(f(inputs)) + the sum over inputs of <d<f(inputs), v>/d(input),
// u>, with history if create_graph. The first term makes every node get gradients of both orders in one
// backward.
struct GradientProduct {
    Function* function;
    Tensors weights;  // u

    Tensor operator()(const Tensors& leaves, bool create_graph) const {
        EnableGrad on;
        const Tensor v = leaves.back();
        const Tensors x(leaves.begin(), leaves.end() - 1);
        const Tensor y = function(x);
        const Tensors gradients = autograd::grad(
            {y}, varying(x), {.grad_outputs = {v}, .create_graph = create_graph, .allow_unused = true});
        Tensor total = sum(y);
        std::size_t g = 0;
        for (const Tensor& u : weights) {
            if (!u.defined()) continue;
            const Tensor& gradient = gradients[g++];
            if (gradient.defined()) total = total + sum(gradient * u);
        }
        return total;
    }
};

}  // namespace

std::string check_gradient(Function* function, const Tensors& inputs) {
    const Tensors x = as_leaves(inputs);
    const Tensor y = function(x), v = random_like(y, 77);
    const Tensors gradients = autograd::grad({y}, varying(x), {.grad_outputs = {v}, .allow_unused = true});
    const Tensors directions = directions_for(x, 177);
    const double above = inner_product(function(moved(inputs, directions, step)), v);
    const double below = inner_product(function(moved(inputs, directions, -step)), v);
    return result("first order", along(gradients, directions), (above - below) / (2 * step));
}

std::string check_second_gradient(Function* function, const Tensors& inputs) {
    Tensors all = inputs;
    {
        NoGrad plain;
        all.push_back(random_like(function(inputs), 78));
    }
    const Tensors leaves = as_leaves(all);
    GradientProduct product{function, directions_for(inputs, 278)};
    const Tensor total = product(leaves, true);
    const Tensors directions = directions_for(all, 378);
    Tensors gradients;
    if (total.requires_grad()) gradients = autograd::grad({total}, varying(leaves), {.allow_unused = true});
    gradients.resize(varying(leaves).size());
    const auto value = [&](double h) {
        return product(as_leaves(moved(all, directions, h)), false).item<double>();
    };
    return result("second order", along(gradients, directions), (value(step) - value(-step)) / (2 * step));
}

}  // namespace mezzo::test
