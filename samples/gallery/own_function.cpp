// A custom function with its own gradient: rounding that lets gradients through (the straight-through
// estimator), used to train weights of four bits; and a cube whose gradient is checked against differences.
#include <mezzo/mezzo.h>

#include <cmath>
#include <iostream>

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

// begin
// Sixteen steps between -1 and 1. The gradient is that of clamp(x, -1, 1).
struct Quantize : mz::autograd::Function<Quantize> {
    static mz::Tensors forward(mz::autograd::Context& context, const mz::Tensors& in) {
        context.saved = {in[0]};
        return {(in[0].clamp(-1, 1) * 7.5).round() / 7.5};
    }
    static mz::Tensors backward(mz::autograd::Context& context, const mz::Tensors& gradients) {
        const mz::Tensor& x = context.saved[0];
        return {mz::where((x >= -1) & (x <= 1), gradients[0], 0.0)};
    }
};

// Written in mezzo's ops, so that it can be differentiated twice.
struct Cube : mz::autograd::Function<Cube> {
    static mz::Tensors forward(mz::autograd::Context& context, const mz::Tensors& in) {
        context.saved = {in[0]};
        return {in[0].pow(3)};
    }
    static mz::Tensors backward(mz::autograd::Context& context, const mz::Tensors& gradients) {
        return {gradients[0] * 3 * context.saved[0].square()};
    }
};

struct QuantizedLinear : nn::Module {
    QuantizedLinear(std::int64_t in, std::int64_t out) : inner(in, out) {}
    mz::Tensor operator()(const mz::Tensor& x) const {
        return mz::linear(x, Quantize::apply({inner.weight})[0], inner.bias);
    }
    nn::Linear inner;
    MEZZO_MODULE(QuantizedLinear, inner)
};
// end

bool cube_is_right() {
    // begin
    const mz::Tensor x = mz::Tensor::from({1.5f, -2}).to(mz::float64).set_requires_grad();
    const mz::Tensor y = Cube::apply({x})[0].sum();
    const mz::Tensor first = mz::autograd::grad({y}, {x}, {.create_graph = true})[0];
    const mz::Tensor second = mz::autograd::grad({first.sum()}, {x})[0];
    const mz::NoGrad plain;
    const double h = 1e-4;
    const mz::Tensor difference = (Cube::apply({x + h})[0] - Cube::apply({x - h})[0]) / (2 * h);
    std::cout << "gradient " << first.detach() << "\ndifferences " << difference << "\nsecond " << second
              << '\n';
    return mz::all_close(first, difference, 1e-6) && mz::all_close(second, 6 * x);
    // end
}

}  // namespace

int main() {
    mz::manual_seed(3);
    const mz::Tensor x = mz::randn({256, 6}), y = (x.sum(1, {.keepdim = true}) > 0).to(mz::float32);
    nn::Sequential net{QuantizedLinear(6, 16), nn::ReLU(), QuantizedLinear(16, 1)};
    mz::optim::Adam optimizer(net.parameters(), {.lr = 0.01});
    for (int step = 0; step < 200; ++step) {
        optimizer.zero_grad();
        mz::binary_cross_entropy_with_logits(net(x), y).backward();
        optimizer.step();
    }
    const bool right = cube_is_right();
    const mz::NoGrad plain;
    const double accuracy = ((net(x) > 0) == (y > 0)).to(mz::float32).mean().item<double>();
    std::cout << "with weights of 4 bits: " << 100 * accuracy << " % right\n";
    return right && accuracy > 0.9 ? 0 : 1;
}
