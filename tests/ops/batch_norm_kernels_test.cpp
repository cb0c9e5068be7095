// The kernels of batch_norm and group_norm against their formulas in float64, in shapes that cut images into
// many parts, on every device and instruction set.
#include <catch2/catch.hpp>

#include "cpu/isa/isa.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/image_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

struct Case {
    Shape shape;
    bool training = true, relu = false, residual = false;
};

struct Outcome {
    std::vector<std::vector<double>> values;  // y, running mean and variance, gradients
};

Tensor noise(const Shape& shape, std::uint64_t seed, Dtype dtype, Device device) {
    return tensor_of(random_values(shape.numel(), seed, Domain::any), shape, dtype, device);
}

// The inputs are rounded to `rounded` first, so that all dtypes start from the same numbers.
Outcome run(const Case& c, Dtype rounded, Dtype dtype, Device device) {
    const Shape per_channel{c.shape.back()};
    const auto make = [&](const Shape& shape, std::uint64_t seed) {
        return noise(shape, seed, rounded, device).to(dtype);
    };
    const Tensor x = make(c.shape, 1).set_requires_grad(), w = make(per_channel, 2).set_requires_grad(),
                 b = make(per_channel, 3).set_requires_grad(), r = make(c.shape, 4).set_requires_grad();
    const Tensor mean = make(per_channel, 5), var = square(noise(per_channel, 6, rounded, device)).to(dtype);
    const Tensor y = batch_norm(
        x, mean, var, w, b,
        {.training = c.training, .momentum = 0.25, .relu = c.relu, .residual = c.residual ? r : Tensor()});
    y.backward({.gradient = make(c.shape, 7)});
    Outcome outcome;
    for (const Tensor& t : {y.detach(), mean, var, x.grad(), w.grad(), b.grad()})
        outcome.values.push_back(doubles(t));
    if (c.residual) outcome.values.push_back(doubles(r.grad()));
    return outcome;
}

double largest(const std::vector<double>& values) {
    double m = 0;
    for (const double v : values) m = std::max(m, std::abs(v));
    return m;
}

void compare(const Outcome& actual, const Outcome& wanted, Dtype dtype) {
    REQUIRE(actual.values.size() == wanted.values.size());
    for (std::size_t i = 0; i < wanted.values.size(); ++i) {
        Tolerance t = tolerance(dtype);
        t.absolute = 4 * t.relative * std::max(1.0, largest(wanted.values[i]));
        CAPTURE(i, name(dtype));
        CHECK(difference(actual.values[i], wanted.values[i], t) == "");
    }
}

const Case cases[] = {
    {{4500, 16}},  // rows of four pixels, two parts, the last row not whole
    {{4503, 16}, true, true, true},
    {{777, 64}, true, true, false},
    {{130, 130}, true, false, true},  // 16 does not divide the channels
    {{33, 1029}, true, true, true},   // rows of many pixels
    {{300, 5}, false, true, true},
    {{700, 256}, false, false, false},
    {{3, 7, 9, 1}, true, true, false},  // one channel
    {{2, 24}, true, true, true},
};

}  // namespace

TEST_CASE("batch_norm kernels agree with the decomposition in float64", "[batch_norm]") {
    for (const Case& c : cases)
        for (const Dtype dtype : {float32, bfloat16, float16, float64}) {
            Outcome wanted;
            {
                ByDecomposition reference;
                wanted = run(c, dtype, float64, cpu_device);
            }
            for (const Device device : devices())
                for (const cpu::Isa isa : cpu::all_isas) {
                    if (device.type() != DeviceType::cpu && isa != cpu::Isa::portable) continue;
                    if (isa > cpu::best_isa() || isa > cpu::Isa::avx512) continue;
                    cpu::force_isa(isa);
                    CAPTURE(c.shape, c.training, c.relu, c.residual, name(device.type()), cpu::name(isa));
                    compare(run(c, dtype, dtype, device), wanted, dtype);
                    cpu::release_isa();
                }
        }
}

TEST_CASE("batch_norm and group_norm give the same bits with any number of threads", "[batch_norm]") {
    const int before = num_threads();
    const auto group = [](Dtype dtype) {
        const Tensor x = noise({3, 900, 48}, 1, dtype, cpu_device).set_requires_grad();
        const Tensor w = noise({48}, 2, dtype, cpu_device).set_requires_grad();
        const Tensor y = group_norm(x, 6, w);
        sum(square(y)).backward();
        return Outcome{{doubles(y.detach()), doubles(x.grad()), doubles(w.grad())}};
    };
    for (const Dtype dtype : {float32, bfloat16}) {
        std::vector<Outcome> batch_norms, group_norms;
        for (const int threads : {1, 2, 3}) {
            set_num_threads(threads);
            batch_norms.push_back(run({{20011, 16}, true, true, true}, dtype, dtype, cpu_device));
            group_norms.push_back(group(dtype));
        }
        set_num_threads(before);
        for (int i = 1; i < 3; ++i) {
            CHECK(batch_norms[std::size_t(i)].values == batch_norms[0].values);
            CHECK(group_norms[std::size_t(i)].values == group_norms[0].values);
        }
    }
}

TEST_CASE("group_norm kernels agree with the decomposition in float64", "[batch_norm]") {
    struct GroupCase {
        Shape shape;
        std::int64_t groups;
    };
    const auto values = [](const GroupCase& c, Dtype rounded, Dtype dtype, Device device) {
        const Shape per_channel{c.shape.back()};
        const auto make = [&](const Shape& shape, std::uint64_t seed) {
            return noise(shape, seed, rounded, device).to(dtype).set_requires_grad();
        };
        const Tensor x = make(c.shape, 1), w = make(per_channel, 2), b = make(per_channel, 3);
        const Tensor y = group_norm(x, c.groups, w, b);
        y.backward({.gradient = make(c.shape, 4).detach()});
        Outcome o;
        for (const Tensor& t : {y.detach(), x.grad(), w.grad(), b.grad()}) o.values.push_back(doubles(t));
        return o;
    };
    for (const GroupCase& c : {GroupCase{{2, 9, 9, 64}, 8}, GroupCase{{5, 40}, 4}, GroupCase{{1, 600, 30}, 3},
                               GroupCase{{3, 5, 1}, 1}})
        for (const Dtype dtype : {float32, bfloat16, float16, float64}) {
            Outcome wanted;
            {
                ByDecomposition reference;
                wanted = values(c, dtype, float64, cpu_device);
            }
            for (const Device device : devices()) {
                CAPTURE(c.shape, c.groups, name(device.type()));
                compare(values(c, dtype, dtype, device), wanted, dtype);
            }
        }
}

TEST_CASE("batch_norm: the gradient of a gradient's norm, trained and evaluated", "[batch_norm]") {
    // A gradient penalty as in WGAN-GP, by the kernels and by the decomposition.
    for (const bool training : {true, false})
        for (const Device device : devices()) {
            const auto penalty = [&](Dtype dtype, Device where) {
                const Tensor x = noise({12, 16}, 1, float32, where).to(dtype).set_requires_grad();
                const Tensor w = noise({16}, 2, float32, where).to(dtype).set_requires_grad();
                const Tensor y = batch_norm(x, zeros({16}, {.dtype = dtype, .device = where}),
                                            ones({16}, {.dtype = dtype, .device = where}), w, {},
                                            {.training = training, .relu = true});
                const Tensor g = autograd::grad({sum(square(y) * y)}, {x}, {.create_graph = true})[0];
                sum(square(norm(g, {1}) - 1.0)).backward();
                return Outcome{{doubles(g.detach()), doubles(x.grad()), doubles(w.grad())}};
            };
            Outcome wanted;
            {
                ByDecomposition reference;
                wanted = penalty(float64, cpu_device);
            }
            CAPTURE(training, name(device.type()));
            const Outcome actual = penalty(float32, device);
            for (std::size_t i = 0; i < wanted.values.size(); ++i)
                CHECK(difference(actual.values[i], wanted.values[i],
                                 {1e-4, 2e-5 * largest(wanted.values[i])}) == "");
        }
}
