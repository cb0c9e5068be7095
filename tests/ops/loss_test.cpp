// Losses, softmax and attention of large values: only differences matter, so that adding one number to all
// logits changes nothing. Also inputs that are not probabilities.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <optional>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/loss_ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

const double shifts[] = {0, 100, 6e4, 1e7, 1e8, 3e30, -1e8};

// Runs f(logits) for logits in steps of 64 units of float32 at 1e8, which stay exact at every shift up to
// 1e8, and returns the gradient.
template <class F> std::vector<double> gradient_at(double shift, Device device, const F& f) {
    const std::vector<double> steps = {0, 0, 0, 0, 512, 0, 512, 504, 0};
    std::vector<double> values;
    for (const double step : steps) values.push_back(shift + (std::abs(shift) > 1e9 ? 0 : step));
    const Tensor x = tensor_of(values, {3, 3}, float32, device).set_requires_grad();
    f(x).backward();
    return doubles(x.grad());
}

struct Flash {
    explicit Flash(bool on) { set_flash_attention(on); }
    ~Flash() { set_flash_attention(before); }
    const FastPath before = flash_attention();
};

}  // namespace

TEST_CASE("equal logits share the gradient whatever their size", "[ops][loss]") {
    for (const Device device : devices())
        for (const double shift : shifts)
            for (const double smoothing : {0.0, 0.25}) {
                CAPTURE(shift, smoothing, name(device.type()));
                const Tensor x = tensor_of({shift, shift}, {1, 2}, float32, device).set_requires_grad();
                const Tensor target = zeros({1}, {.dtype = int64, .device = device});
                const Tensor loss = cross_entropy(x, target, {.label_smoothing = smoothing});
                loss.backward();
                CHECK(doubles(loss)[0] == Approx(std::log(2.0)).epsilon(1e-6));
                const double wanted = 0.5 - smoothing / 2;
                CHECK(difference(doubles(x.grad()), std::vector<double>{-wanted, wanted}, {1e-6, 0}) == "");
            }
}

TEST_CASE("the loss and its gradient do not depend on a shift of the logits", "[ops][loss]") {
    for (const Device device : devices()) {
        const Tensor target = Tensor::from(std::vector<std::int64_t>{0, 1, 2}, {3}).to(device);
        for (const double smoothing : {0.0, 0.3}) {
            const auto loss = [&](const Tensor& x) {
                return cross_entropy(x, target, {.label_smoothing = smoothing});
            };
            const std::vector<double> wanted = gradient_at(0, device, loss);
            for (const double shift : {6e4, 1e7, 1e8, -1e8}) {
                CAPTURE(shift, smoothing, name(device.type()));
                CHECK(difference(gradient_at(shift, device, loss), wanted, {1e-6, 1e-9}) == "");
                ByDecomposition composed;
                CHECK(difference(gradient_at(shift, device, loss), wanted, {1e-6, 1e-7}) == "");
            }
        }
        for (const bool logarithm : {false, true}) {
            const auto chosen = [&](const Tensor& x) {
                return sum((logarithm ? log_softmax(x) : softmax(x)).select(1, 1));
            };
            const std::vector<double> wanted = gradient_at(0, device, chosen);
            for (const double shift : {6e4, 1e7, 1e8, -1e8})
                CHECK(difference(gradient_at(shift, device, chosen), wanted, {1e-6, 1e-9}) == "");
        }
    }
}

TEST_CASE("binary cross entropy of a large logit is a difference taken first", "[ops][loss]") {
    // 1 - t is 2^-20 and x 2^24: the loss is 16, and x - x t in float32 the nearest multiple of 1 or 2.
    const double t = 1 - 0x1p-20;
    for (const Device device : devices())
        for (const double x : {0x1p24 + 2, 0x1p30, -0x1p24, 88.0, 1e8}) {
            CAPTURE(x, name(device.type()));
            const double wanted = (1 - t) * x + (x < 0 ? -x : 0) + std::log1p(std::exp(-std::abs(x)));
            const Tensor logit = tensor_of({x}, {1}, float32, device),
                         target = tensor_of({t}, {1}, float32, device);
            CHECK(doubles(binary_cross_entropy_with_logits(logit, target))[0] ==
                  Approx(wanted).epsilon(1e-6));
            ByDecomposition composed;
            CHECK(doubles(binary_cross_entropy_with_logits(logit, target))[0] ==
                  Approx(wanted).epsilon(1e-6));
        }
}

TEST_CASE("attention of equal scores shares the gradient whatever their size", "[ops][attention]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float16, float64})
            for (const bool flash : {false, true}) {
                const Flash scope(flash);
                for (const double size : {1.0, 200.0, 20000.0}) {  // scores of size^2 sqrt(32)
                    CAPTURE(size, name(dtype), name(device.type()), flash);
                    const TensorOptions like{.dtype = dtype, .device = device};
                    const Tensor q = full({1, 1, 4, 32}, size, like).set_requires_grad();
                    const Tensor k = full({1, 1, 8, 32}, size, like).set_requires_grad();
                    const Tensor v = full({1, 1, 8, 32}, 1, like).set_requires_grad();
                    sum(scaled_dot_product_attention(q, k, v)).backward();
                    CHECK(difference(doubles(v.grad()), std::vector<double>(256, 0.5), {1e-5, 0}) == "");
                    CHECK(difference(doubles(k.grad()), std::vector<double>(256, 0.0), {0, 1e-3}) == "");
                }
            }
}

TEST_CASE("a query that a floating mask hides from every key gives 0 and zero gradients",
          "[ops][attention]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float16, float64})
            for (const bool flash : {false, true})
                for (const bool floating : {true, false})
                    for (const bool causal : {false, true}) {
                        const Flash scope(flash);
                        CAPTURE(name(dtype), name(device.type()), flash, floating, causal);
                        const auto input = [&](std::uint64_t seed) {
                            return tensor_of(random_values(2 * 6 * 32, seed, Domain::any), {1, 2, 6, 32},
                                             dtype, device)
                                .set_requires_grad();
                        };
                        const Tensor q = input(1), k = input(2), v = input(3);
                        std::vector<double> look(36, 1);  // query 2 sees nothing, query 4 only key 1
                        for (std::size_t j = 0; j < 6; ++j) look[12 + j] = look[24 + j] = 0;
                        look[25] = 1;
                        Tensor mask = tensor_of(look, {6, 6}, boolean, device);
                        if (floating)
                            mask =
                                masked_fill(zeros({6, 6}, {.device = device}), logical_not(mask), -INFINITY);
                        const Tensor y =
                            scaled_dot_product_attention(q, k, v, {.mask = mask, .causal = causal});
                        sum(y * y).backward();
                        for (const Tensor& t : {y, q.grad(), k.grad(), v.grad()})
                            CHECK(doubles(isfinite(t)) == std::vector<double>(384, 1));
                        for (const Tensor& t : {y, q.grad()})
                            CHECK(doubles(t.select(2, 2)) == std::vector<double>(64, 0));
                        CHECK(difference(doubles(y.select(2, 4)), doubles(v.select(2, 1)),
                                         tolerance(dtype)) == "");
                    }
}

TEST_CASE("binary cross entropy of what is no probability", "[ops][loss]") {
    const Tensor target = tensor_of({0, 1, 0, 1}, {4}, float32);
    for (const Dtype dtype : {float32, float16, float64}) {
        CHECK_THROWS_WITH(
            binary_cross_entropy(tensor_of({0.5, 1.5, 0, 1}, {4}, dtype), target),
            "binary_cross_entropy: input 1.5 at element 1 is no probability; it must be between 0 "
            "and 1, or use binary_cross_entropy_with_logits");
        CHECK_THROWS_WITH(binary_cross_entropy(tensor_of({0.5, 0.5, 0, -0.25}, {4}, dtype), target),
                          Catch::StartsWith("binary_cross_entropy: input -0.25 at element 3"));
    }
    const Tensor rest = tensor_of({NAN, 1, 0, 0.5}, {4}, float32);
    const std::vector<double> values =
        doubles(binary_cross_entropy(rest, target, {.reduction = Reduction::none}));
    CHECK(std::isnan(values[0]));
    CHECK(values[1] == 0);
    for (const Device device : devices()) {
        if (device == cpu_device) continue;
        const Tensor x = tensor_of({0.5, 1.5, -0.5, 1}, {4}, float32, device).set_requires_grad();
        const Tensor loss = binary_cross_entropy(x, target.to(device), {.reduction = Reduction::none});
        sum(loss).backward();
        const std::vector<double> y = doubles(loss), g = doubles(x.grad());
        for (const std::size_t i : {1, 2}) {
            CHECK(std::isnan(y[i]));
            CHECK(std::isnan(g[i]));
        }
        for (const std::size_t i : {0, 3}) {
            CHECK(std::isfinite(y[i]));
            CHECK(std::isfinite(g[i]));
        }
    }
}

TEST_CASE("cross_entropy with weights: ignored rows may hold anything, a wrong class is named",
          "[ops][loss]") {
    const double inf = std::numeric_limits<double>::infinity();
    for (const Device device : devices())
        for (const double bad : {inf, -inf, std::nan("")}) {
            CAPTURE(bad);
            const Tensor weight = tensor_of({1, 2, 3}, {3}, float32, device);
            const Tensor target = Tensor::from<std::int64_t>({1, -100}, {2}).to(device);
            const Tensor x = tensor_of({1, 2, 3, bad, bad, 0}, {2, 3}, float32, device).set_requires_grad();
            const Tensor plain = tensor_of({1, 2, 3}, {1, 3}, float32, device).set_requires_grad();
            const CrossEntropyOptions options{.label_smoothing = 0.1, .weight = weight};
            const Tensor loss = cross_entropy(x, target, options),
                         expected = cross_entropy(plain, target.slice(0, 0, 1), options);
            CHECK(doubles(loss) == doubles(expected));
            loss.backward();
            expected.backward();
            std::vector<double> grad = doubles(plain.grad());
            grad.resize(6);
            CHECK(doubles(x.grad()) == grad);
        }
    const Tensor wrong = Tensor::from<std::int64_t>({1, 3}, {2}), x = zeros({2, 3}), weight = ones({3});
    CHECK_THROWS_WITH(cross_entropy(x, wrong, {.weight = weight}),
                      Catch::Matchers::StartsWith("cross_entropy: target 3 in row 1 is not a class"));
    CHECK_THROWS_WITH(nll_loss(x, wrong, {.weight = weight}),
                      Catch::Matchers::StartsWith("nll_loss: target 3 in row 1 is not a class"));
}

TEST_CASE("cross_entropy of probabilities: values, gradients of both inputs, and the same as of indices",
          "[ops][loss]") {
    const std::vector<double> logits = random_values(12, 1, Domain::any),
                              weights = random_values(12, 2, Domain::unit);
    for (const double smoothing : {0.0, 0.3}) {
        CAPTURE(smoothing);
        std::vector<double> rows;
        for (std::size_t r = 0; r < 3; ++r) {
            double total = 0, loss = 0;
            for (std::size_t c = 0; c < 4; ++c) total += std::exp(logits[4 * r + c]);
            for (std::size_t c = 0; c < 4; ++c)
                loss -= ((1 - smoothing) * weights[4 * r + c] + smoothing / 4) *
                        (logits[4 * r + c] - std::log(total));
            rows.push_back(loss);
        }
        for (const Device device : devices())
            for (const Dtype dtype : {float64, float32, bfloat16, float16}) {
                CAPTURE(dtype_info(dtype).name);
                const Tensor x = tensor_of(logits, {3, 4}, dtype, device),
                             p = tensor_of(weights, {3, 4}, float64, device);
                const auto loss = [&](Reduction reduction) {
                    const Tensor result =
                        cross_entropy(x, p, {.label_smoothing = smoothing, .reduction = reduction});
                    CHECK(result.dtype() == dtype);
                    return doubles(result);
                };
                // 16-bit logits are rounded before the loss, which is no more sensitive than its largest
                // weight.
                const Tolerance allowed{2 * tolerance(dtype).relative, 8 * tolerance(dtype).absolute};
                const double sum = rows[0] + rows[1] + rows[2];
                CHECK(difference(loss(Reduction::none), rows, allowed).empty());
                CHECK(difference(loss(Reduction::sum), std::vector<double>{sum}, allowed).empty());
                CHECK(difference(loss(Reduction::mean), std::vector<double>{sum / 3}, allowed).empty());
            }
    }
    const auto function = [](In in) { return cross_entropy(in[0], in[1], {.label_smoothing = 0.1}); };
    const Tensors inputs{tensor_of(logits, {3, 4}, float64), tensor_of(weights, {3, 4}, float64)};
    CHECK(check_gradient(function, inputs).empty());
    CHECK(check_second_gradient(function, inputs).empty());

    const Tensor x = tensor_of(logits, {3, 4}, float32), classes = Tensor::from<std::int64_t>({2, 0, 3}, {3});
    const Tensor hot = eq(arange(4), classes.unsqueeze(1)).to(float32);
    CHECK(all_close(cross_entropy(x, hot, {.label_smoothing = 0.2}),
                    cross_entropy(x, classes, {.label_smoothing = 0.2})));
    {
        const amp::Autocast scope({.dtype = bfloat16});
        CHECK(cross_entropy(x.to(bfloat16), hot).dtype() == float32);
    }
    CHECK(cross_entropy(zeros({0, 4}), zeros({0, 4}), {.reduction = Reduction::sum}).item<float>() == 0);
    CHECK_THROWS_WITH(cross_entropy(x, zeros({3, 3})),
                      Catch::Matchers::Contains("[3, 3] is not the shape of the logits, [3, 4]"));
    CHECK_THROWS_WITH(cross_entropy(x, hot, {.label_smoothing = 2}),
                      Catch::Matchers::Contains("label_smoothing 2"));
}

TEST_CASE("a factor of 0 takes an infinite logit out of a loss", "[ops][loss]") {
    const double inf = std::numeric_limits<double>::infinity();
    // Checks loss and gradient, by the kernels and by the decomposition.
    const auto gives = [](const Tensor& x, const auto& loss, double wanted, const std::vector<double>& grad) {
        const auto look = [&] {
            const Tensor leaf = alias(x.detach()).set_requires_grad(), y = loss(leaf);
            y.backward();
            CHECK(doubles(y)[0] == Approx(wanted).margin(1e-7));
            CHECK(difference(doubles(leaf.grad()), grad, {1e-5, 1e-7}) == "");
        };
        look();
        const ByDecomposition composed;
        look();
    };
    const double half = std::log(2.0);
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float64}) {
            CAPTURE(name(device.type()), name(dtype));
            const auto of = [&](const std::vector<double>& values, const Shape& shape) {
                return tensor_of(values, shape, dtype, device);
            };
            const Tensor bits = of({0, 1, 1}, {3});
            gives(of({-inf, inf, 0}, {3}),
                  [&](const Tensor& x) {
                      return binary_cross_entropy_with_logits(x, bits, {.reduction = Reduction::sum});
                  },
                  half, {0, 0, -0.5});
            const Tensor p = of({0, 0.5, 0.5}, {1, 3}), log_p = log(p);
            const double divergence = std::log(0.5) - 0.5 * (-1.0 - 2.0);
            for (const bool broadcast : {false, true})
                gives(broadcast ? of({-inf, -1, -2}, {3}) : of({-inf, -1, -2}, {1, 3}),
                      [&](const Tensor& x) { return kl_div(x, p, {.reduction = Reduction::sum}); },
                      divergence, {0, -0.5, -0.5});
            gives(of({-inf, -1, -2}, {1, 3}),
                  [&](const Tensor& x) {
                      return kl_div(x, log_p, {.reduction = Reduction::sum, .log_target = true});
                  },
                  divergence, {0, -0.5, -0.5});
            const Tensor x = of({-inf, 0, 0}, {1, 3}), ones_but = of({0, 1, 1}, {3});
            gives(x, [&](const Tensor& l) { return cross_entropy(l, p); }, half, {0, 0, 0});
            gives(x,
                  [&](const Tensor& l) {
                      return cross_entropy(l, of({1, 1, 1}, {1, 3}), {.weight = ones_but});
                  },
                  2 * half, {0, 0, 0});
            const auto index = [&](std::int64_t i) {
                return Tensor::from<std::int64_t>({i}, {1}).to(device);
            };
            for (const double smoothing : {0.0, 0.3, 1.0})
                gives(
                    x,
                    [&](const Tensor& l) {
                        return cross_entropy(
                            l, index(0),
                            {.label_smoothing = smoothing, .reduction = Reduction::sum, .weight = ones_but});
                    },
                    smoothing / 3 * 2 * half, {0, 0, 0});
            gives(x,
                  [&](const Tensor& l) {
                      return nll_loss(log_softmax(l), index(0),
                                      {.reduction = Reduction::sum, .weight = ones_but});
                  },
                  0, {0, 0, 0});
            CHECK(std::isinf(doubles(cross_entropy(x, index(0), {.label_smoothing = 1}))[0]));
        }
}

TEST_CASE("the gradient of a confident right answer is small, not 0", "[ops][loss]") {
    for (const Device device : devices())
        for (const double size : {0.1, 2.0, 15.0, 17.0, 20.0, 40.0, 80.0}) {
            const double wrong = 1 / (1 + std::exp(size));
            const Tensor x = tensor_of({size, -size}, {2}, float32, device).set_requires_grad();
            const Tensor t = tensor_of({1, 0}, {2}, float32, device);
            const auto look = [&] {
                CAPTURE(size, name(device.type()));
                x.set_grad(Tensor());
                binary_cross_entropy_with_logits(x, t, {.reduction = Reduction::sum}).backward();
                CHECK(difference(doubles(x.grad()), std::vector<double>{-wrong, wrong}, {1e-6, 0}) == "");
            };
            look();
            const ByDecomposition composed;
            look();
        }
    using Loss = Tensor(const Tensor& x, const Tensor& target);
    const std::pair<const char*, Loss*> losses[] = {
        {"indices", [](const Tensor& x, const Tensor& t) { return cross_entropy(x, t); }},
        {"weights",
         [](const Tensor& x, const Tensor& t) {
             return cross_entropy(x, t, {.weight = ones({x.size(1)}, {.device = x.device()})});
         }},
        {"nll_loss", [](const Tensor& x, const Tensor& t) { return nll_loss(log_softmax(x), t); }},
        {"probabilities",
         [](const Tensor& x, const Tensor& t) {
             return cross_entropy(x,
                                  eq(arange(x.size(1), {.device = x.device()}), t.unsqueeze(1)).to(float32));
         }},
        {"kl_div", [](const Tensor& x, const Tensor& t) {
             const Tensor hot = eq(arange(x.size(1), {.device = x.device()}), t.unsqueeze(1)).to(float32);
             return kl_div(log_softmax(x), hot, {.reduction = Reduction::sum});
         }}};
    for (const Device device : devices())
        for (const std::int64_t columns : {2, 4, 40, 1500})
            for (const double size : {0.1, 15.0, 20.0, 40.0, 80.0})
                for (const auto& [name, loss] : losses) {
                    CAPTURE(columns, size, name, mezzo::name(device.type()));
                    std::vector<double> values(std::size_t(columns), 0.0);
                    values[1] = size;
                    const Tensor x = tensor_of(values, {1, columns}, float32, device).set_requires_grad();
                    const Tensor y = loss(x, Tensor::from<std::int64_t>({1}, {1}).to(device));
                    y.backward();
                    const double others = double(columns - 1) * std::exp(-size), total = 1 + others;
                    std::vector<double> wanted(values.size(), std::exp(-size) / total);
                    wanted[1] = -others / total;
                    CHECK(difference(doubles(x.grad()), wanted, {4e-6, 0}) == "");
                    CHECK(doubles(y)[0] == Approx(std::log1p(others)).epsilon(1e-5));
                }
    // The same in float64, and with label smoothing.
    for (const Device device : devices()) {
        const Tensor x = tensor_of({50, 0, 0}, {1, 3}, float64, device).set_requires_grad();
        const Tensor target = zeros({1}, {.dtype = int64, .device = device});
        const double wrong = std::exp(-50.0);
        const auto look = [&](double smoothing, const std::vector<double>& wanted) {
            x.set_grad(Tensor());
            cross_entropy(x, target, {.label_smoothing = smoothing}).backward();
            CHECK(difference(doubles(x.grad()), wanted, {1e-12, 0}) == "");
        };
        look(0, {-2 * wrong, wrong, wrong});
        look(0.3, {0.2, -0.1, -0.1});
        x.set_grad(Tensor());
        nll_loss(log_softmax(x), target).backward();
        CHECK(difference(doubles(x.grad()), std::vector<double>{-2 * wrong, wrong, wrong}, {1e-12, 0}) == "");
    }
}

TEST_CASE("huber_loss rounds once and takes any delta", "[ops][loss]") {
    const double inf = std::numeric_limits<double>::infinity();
    for (const Device device : devices()) {
        const Tensor many = ones({100000}, {.dtype = float16, .device = device});
        CHECK(doubles(huber_loss(many, zeros_like(many), {.delta = 1e-3, .reduction = Reduction::sum}))[0] ==
              Approx(99.95).epsilon(1e-3));
        const Tensor small = tensor_of({3e-3}, {1}, float16, device);
        CHECK(doubles(huber_loss(small, zeros_like(small), {.delta = 300}))[0] ==
              Approx(4.5e-6).epsilon(0.02));
        for (const Dtype dtype : {float32, float64})
            for (const double delta : {1e-300, 0.5, 1.0, 1e30, 1e300, inf})
                for (const bool composed : {false, true}) {
                    CAPTURE(name(dtype), delta, composed);
                    std::optional<ByDecomposition> scope;
                    if (composed) scope.emplace();
                    const std::vector<double> d = {0, 0.25, -3, 1e10};
                    const Tensor x = tensor_of(d, {4}, dtype, device).set_requires_grad();
                    const Tensor y =
                        huber_loss(x, zeros_like(x), {.delta = delta, .reduction = Reduction::none});
                    sum(y).backward();
                    std::vector<double> loss, grad;
                    for (const double v : d) {
                        const bool square = std::abs(v) < delta;
                        loss.push_back(square ? v * v / 2 : delta * (std::abs(v) - delta / 2));
                        grad.push_back(square ? v : std::copysign(delta, v));
                    }
                    CHECK(difference(doubles(y), loss, {1e-6, 1e-40}) == "");
                    CHECK(difference(doubles(x.grad()), grad, {1e-6, 1e-40}) == "");
                }
        // smooth_l1_loss is huber_loss divided by delta.
        const Tensor x = tensor_of({0, 3, 1e20, inf}, {4}, float32, device);
        const auto smooth = [&](double beta) {
            return doubles(smooth_l1_loss(x, zeros({4}, {.device = device}),
                                          {.beta = beta, .reduction = Reduction::none}));
        };
        CHECK(difference(smooth(1e30), std::vector<double>{0, 4.5e-30, 5e9, inf}, {1e-6, 0}) == "");
        CHECK(smooth(inf) == std::vector<double>{0, 0, 0, inf});
        CHECK(doubles(huber_loss(x, zeros_like(x), {.delta = inf, .reduction = Reduction::none})) ==
              std::vector<double>{0, 4.5, inf, inf});
    }
}

TEST_CASE("the gradient of mse_loss is finite where twice the difference is not", "[ops][loss]") {
    for (const Device device : devices())
        for (const bool composed : {false, true}) {
            std::optional<ByDecomposition> scope;
            if (composed) scope.emplace();
            const Tensor x = full({34}, 3e38, {.device = device}).set_requires_grad();
            mse_loss(x, zeros_like(x)).backward();
            CHECK(doubles(x.grad())[33] == Approx(2 * (3e38 / 34)).epsilon(1e-6));
            // A gradient of each element that leaves the range when doubled.
            const Tensor small = full({2}, 0.25, {.device = device}).set_requires_grad();
            const Tensor y = mse_loss(small, zeros_like(small), {.reduction = Reduction::sum});
            autograd::backward({y}, {.grad_outputs = {full({}, 3e38, {.device = device})}});
            CHECK(doubles(small.grad())[1] == Approx(1.5e38).epsilon(1e-6));
        }
    // Gradients of a linear layer, whose bias's gradient a device may compute with it.
    for (const Device device : devices()) {
        const Tensor weight = full({8, 1}, 3e38, {.device = device}).set_requires_grad();
        const Tensor bias = zeros({8}, {.device = device}).set_requires_grad();
        mse_loss(linear(ones({4, 1}, {.device = device}), weight, bias), zeros({4, 8}, {.device = device}))
            .backward();
        CHECK(doubles(bias.grad())[7] == Approx(2 * (3e38 / 8)).epsilon(1e-6));
    }
}
