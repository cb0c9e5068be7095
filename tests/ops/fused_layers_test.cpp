// Linear layers with fused activation backward, against the same layers without fusion.
#include <catch2/catch.hpp>

#include "autograd/op.h"
#include "mezzo/amp.h"
#include "mezzo/cuda.h"
#include "mezzo/nn.h"
#include "mezzo/transformer.h"
#include "tests/cpu/gemm_options_scope.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

using test::GemmOptionsScope;

struct ChainOptions {
    LinearActivation activation = LinearActivation::relu;  // between two layers
    bool activate_last = false;                            // also behind the last one
};

Tensor values(const Shape& shape, std::uint64_t seed, Dtype dtype, Device device) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype, device);
}

// x and the parameters of layers 8 -> 16 -> 24 -> 8.
struct Chain {
    Tensor x;
    Tensors weights, biases;
    Dtype dtype;
    Device device;

    explicit Chain(Dtype type = float32, Device where = cpu_device, bool with_biases = true)
        : dtype(type), device(where) {
        const std::int64_t sizes[] = {8, 16, 24, 8};
        x = leaf({5, 8}, 1);
        for (std::uint64_t i = 0; i < 3; ++i) {
            weights.push_back(leaf({sizes[i + 1], sizes[i]}, 2 + i));
            biases.push_back(with_biases ? leaf({sizes[i + 1]}, 5 + i) : Tensor());
        }
    }
    Tensor leaf(const Shape& shape, std::uint64_t seed) const {
        return values(shape, seed, dtype, device).set_requires_grad();
    }
    Tensors leaves() const {
        Tensors all{x};
        all.insert(all.end(), weights.begin(), weights.end());
        for (const Tensor& b : biases)
            if (b.defined()) all.push_back(b);
        return all;
    }
    // With `apart` a hook on each hidden value prevents the fusion of layers.
    Tensor operator()(const ChainOptions& options = {}, bool apart = false) const {
        Tensor h = x;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const bool activates = i + 1 < weights.size() || options.activate_last;
            h = linear(h, weights[i], biases[i], activates ? options.activation : LinearActivation::none);
            if (apart && h.requires_grad()) autograd::add_hook(h, [](const Tensor&) { return Tensor(); });
        }
        return h;
    }
    Tensor factor(const Tensor& y) const { return values(y.shape(), 9, dtype, device); }
};

using Bits = std::vector<std::vector<double>>;
Bits bits(const Tensors& tensors) {
    Bits result;
    for (const Tensor& x : tensors) result.push_back(x.defined() ? test::doubles(x) : std::vector<double>());
    return result;
}

struct Setting {
    Dtype dtype;
    bool autocast, biases, masks;
    ChainOptions options;
};

// y, the gradients of first order, and the gradients of a function of them.
std::pair<Bits, Tensors> run(const Setting& s, Device device, bool fused) {
    const GemmOptionsScope scope({.fuse_layers = true, .relu_masks = fused && s.masks});
    const Chain chain(s.dtype, device, s.biases);
    Tensor y;
    {
        const amp::Autocast low({.device = device.type(), .dtype = bfloat16, .enabled = s.autocast});
        y = chain(s.options, !fused);
        CHECK(y.dtype() == (s.autocast && s.dtype == float32 ? bfloat16 : s.dtype));
    }
    const Tensor loss = sum(y * chain.factor(y));
    Tensors first = autograd::grad({loss}, chain.leaves(), {.retain_graph = true});
    const Tensors recorded = autograd::grad({loss}, chain.leaves(), {.create_graph = true});
    Tensor again = sum(square(recorded[0]));
    for (const Tensor& g : recorded) again = again + sum(square(g));
    const Tensors second = autograd::grad({again}, chain.leaves(), {.allow_unused = true});
    first.push_back(y);
    return {bits(first), second};
}

void check_close(const Tensors& got, const Tensors& expected, test::Tolerance allowed) {
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        REQUIRE(got[i].defined() == expected[i].defined());
        if (!got[i].defined()) continue;
        CHECK(got[i].dtype() == expected[i].dtype());
        double most = 0;
        for (double v : test::doubles(expected[i])) most = std::max(most, std::abs(v));
        CHECK(test::difference(test::doubles(got[i]), test::doubles(expected[i]),
                               {allowed.relative, allowed.absolute + allowed.relative * most}) == "");
    }
}

std::vector<Device> both() { return test::devices(); }

}  // namespace

TEST_CASE("fused layers: values and gradients are those of the layers one by one, bit for bit", "[linear]") {
    const auto activation = GENERATE(LinearActivation::none, LinearActivation::relu, LinearActivation::gelu,
                                     LinearActivation::gelu_tanh);
    const bool last = GENERATE(false, true), biases = GENERATE(true, false), masks = GENERATE(false, true);
    if (masks && activation != LinearActivation::relu) return;
    for (const auto& [dtype, autocast] : {std::pair(float32, false), std::pair(float32, true),
                                          std::pair(float16, false), std::pair(float64, false)})
        for (const Device device : both()) {
            CAPTURE(int(activation), last, biases, masks, name(dtype), autocast, name(device.type()));
            const Setting s{dtype, autocast, biases, masks, {activation, last}};
            const auto [first, second] = run(s, device, true);
            const auto [first_apart, second_apart] = run(s, device, false);
            CHECK(first == first_apart);
            const Dtype computed = autocast ? bfloat16 : dtype;
            check_close(second, second_apart, test::tolerance(computed));
        }
}

TEST_CASE("fused layers: gradients of parameters leave 16-bit products in float32", "[linear][autocast]") {
    for (const Device device : both()) {
        const Chain chain(float32, device);
        {
            const amp::Autocast low({.device = device.type(), .dtype = float16});
            sum(chain()).backward();
        }
        // Sums of 24 products of 16-bit values need more digits than 16 bits hold.
        bool fine = false;
        for (const Tensor& leaf : chain.leaves()) {
            CHECK(leaf.grad().dtype() == float32);
            const Tensor grad = leaf.grad();
            fine |= test::doubles(grad) != test::doubles(grad.to(float16));
        }
        CHECK(fine);
        CHECK(test::doubles(chain.biases[0].grad()) != test::doubles(chain.biases[0].grad().to(float16)));
    }
}

TEST_CASE("fused layers: a result of three dimensions has the next layer as its only consumer", "[linear]") {
    for (const Device device : both()) {
        const Chain chain(float32, device);
        const Tensor x = values({2, 3, 8}, 1, float32, device);
        const Tensor h = linear(x, chain.weights[0], chain.biases[0], LinearActivation::gelu);
        const Tensor y = linear(h, chain.weights[1]);
        CHECK(y->grad_meta->node->edges[0].node.get() == h->grad_meta->node.get());
        CHECK(h->grad_meta->node->consumers.load() == 1);
    }
}

TEST_CASE("fused layers: frozen parameters get no gradient and change no other", "[linear]") {
    const auto frozen =
        GENERATE(std::vector<int>{0}, std::vector<int>{1}, std::vector<int>{1, 4}, std::vector<int>{0, 1, 4},
                 std::vector<int>{0, 1, 2, 4, 5}, std::vector<int>{4, 5, 6},
                 std::vector<int>{1, 2, 3, 4, 5, 6}, std::vector<int>{3, 6});
    const bool last = GENERATE(false, true);
    for (const Device device : both()) {
        const Chain all(float32, device), some(float32, device);
        const Tensors leaves = some.leaves();
        for (int i : frozen) leaves[std::size_t(i)].set_requires_grad(false);
        const GemmOptionsScope scope({.fuse_layers = true, .relu_masks = true});
        const Tensor y = some({.activate_last = last});
        autograd::backward({y}, {.grad_outputs = {some.factor(y)}});
        const Tensor whole = all({.activate_last = last});
        autograd::backward({whole}, {.grad_outputs = {all.factor(whole)}});
        for (std::size_t i = 0; i < leaves.size(); ++i) {
            CAPTURE(i);
            if (leaves[i].requires_grad())
                check_close({leaves[i].grad()}, {all.leaves()[i].grad()}, test::tolerance(float32));
            else
                CHECK_FALSE(leaves[i].grad().defined());
        }
    }
}

TEST_CASE("fused layers: a weight twice in one chain gets both gradients", "[linear]") {
    const GemmOptionsScope scope({.fuse_layers = true});
    for (const Device device : both()) {
        const auto gradients = [&](bool apart) {
            const Chain c(float32, device);
            const Tensor w = c.leaf({8, 8}, 20), b = c.leaf({8}, 21);
            const Tensor h = linear(c.x, w, b, LinearActivation::gelu);
            const Tensor y = linear(h, w, b) + (apart ? 0.0 * h : zeros({}, {.device = device}));
            for (int i = 0; i < 2; ++i)  // the second time into gradients that are there
                autograd::backward({y}, {.grad_outputs = {c.factor(y)}, .retain_graph = true});
            return Tensors{w.grad(), b.grad(), c.x.grad()};
        };
        check_close(gradients(false), gradients(true), test::tolerance(float32));
    }
}

TEST_CASE("fused layers: a weight that is no leaf gets the sum of both gradients", "[linear]") {
    for (const Device device : both()) {
        const auto gradients = [&](Dtype dtype) {
            const Chain c(dtype, device);
            const Tensor w = c.leaf({8, 8}, 20), b = c.leaf({8}, 21), twice = w * 2.0;
            const Tensor y = linear(linear(linear(c.x, twice, b), twice, b), twice, b);
            autograd::backward({y}, {.grad_outputs = {c.factor(y)}});
            return Tensors{w.grad().to(float64), b.grad().to(float64), c.x.grad().to(float64)};
        };
        check_close(gradients(float32), gradients(float64), test::tolerance(float32));
    }
}

TEST_CASE("fused layers: gradients are added to those that are there", "[linear]") {
    for (const Device device : both()) {
        const Chain chain(float32, device);
        const Tensor y = chain();
        const Tensor g = chain.factor(y);
        autograd::backward({y}, {.grad_outputs = {g}, .retain_graph = true});
        Tensors once;
        std::vector<const void*> places;
        for (const Tensor& leaf : chain.leaves()) {
            once.push_back(leaf.grad() * 2.0);
            places.push_back(leaf.grad()->storage->data);
        }
        autograd::backward({y}, {.grad_outputs = {g}});
        for (std::size_t i = 0; i < once.size(); ++i) {
            check_close({chain.leaves()[i].grad()}, {once[i]}, test::tolerance(float32));
            CHECK(chain.leaves()[i].grad()->storage->data == places[i]);
        }
    }
}

TEST_CASE("fused layers: hooks of parameters see the whole gradient once", "[linear]") {
    for (const Device device : both()) {
        const Chain plain(float32, device), hooked(float32, device);
        int calls = 0;
        autograd::add_hook(hooked.weights[1], [&](const Tensor& g) {
            ++calls;
            return 2.0 * g;
        });
        for (const Chain* chain : {&plain, &hooked})
            for (int i = 0; i < 2; ++i) sum((*chain)({LinearActivation::gelu_tanh})).backward();
        CHECK(calls == 2);
        check_close({hooked.weights[1].grad()}, {2.0 * plain.weights[1].grad()}, test::tolerance(float32));
        check_close({hooked.weights[0].grad()}, {plain.weights[0].grad()}, test::tolerance(float32));
    }
}

TEST_CASE("fused layers: the gradient refuses what it cannot read any more", "[linear]") {
    const Chain chain;
    const auto write = [](const Tensor& x) {
        NoGrad plain;
        x.fill_(1);
    };
    Tensor y = sum(chain());
    write(chain.weights[1]);
    CHECK_THROWS_WITH(y.backward(), Catch::StartsWith("linear_relu: its input 1 was changed in place"));
    y = sum(chain());
    y.backward();
    CHECK_THROWS_WITH(y.backward(), Catch::Contains("retain_graph"));
    const Tensor h = linear(chain.x, chain.weights[0], {}, LinearActivation::relu);
    y = sum(linear(h, chain.weights[1]));
    write(h);
    CHECK_THROWS_WITH(y.backward(), Catch::StartsWith("linear_relu: its result 0 was changed in place"));
}

TEST_CASE("fused layers: nothing is kept where nothing is recorded", "[linear]") {
    Chain chain;
    chain.x = values({512, 8}, 1, float32, cpu_device);
    const auto peak = [&] {
        reset_peak(cpu_device);
        const std::size_t before = memory_stats(cpu_device).allocated;
        chain({LinearActivation::gelu});
        return memory_stats(cpu_device).max_allocated - before;
    };
    const std::size_t first = 512 * 16 * sizeof(float), second = 512 * 24 * sizeof(float),
                      y = 512 * 8 * sizeof(float);
    CHECK(peak() == 2 * (first + second) + y);  // with the values before each activation
    NoGrad plain;
    CHECK(peak() == first + second);
}

TEST_CASE("fused layers: the gradient of a hidden value takes one matrix", "[linear]") {
    const Tensor x = values({256, 4}, 1, float32, cpu_device),
                 w = values({512, 4}, 2, float32, cpu_device).set_requires_grad(),
                 v = values({4, 512}, 3, float32, cpu_device);
    const auto peak = [&](bool hooked) {
        const Tensor h = linear(x, w, {}, LinearActivation::relu);
        if (hooked) autograd::add_hook(h, [](const Tensor&) { return Tensor(); });
        const Tensor y = sum(linear(h, v));
        reset_peak(cpu_device);
        const std::size_t before = memory_stats(cpu_device).allocated;
        y.backward();
        w.set_grad({});
        return memory_stats(cpu_device).max_allocated - before;
    };
    const std::size_t hidden = 256 * 512 * sizeof(float);
    CHECK(peak(false) < 2 * hidden);
    CHECK(peak(true) >= 2 * hidden);
}

TEST_CASE("sequential: options of fused layers change no value and no gradient", "[nn]") {
    manual_seed(3);
    const nn::Linear a(8, 16), b(16, 16), c(16, 8, {.bias = false}), d(8, 8);
    const nn::Sequential relus{a, nn::ReLU(), b, nn::ReLU(), c};
    const nn::Sequential changing{a, nn::ReLU(), b, nn::GELU(), c, nn::GELU(), d, d};
    const nn::Sequential parted{a, nn::ReLU(), nn::Dropout(0.0), b, nn::ReLU(), c, nn::ReLU()};
    for (const Device device : both())
        for (const nn::Sequential* net : {&relus, &changing, &parted}) {
            nn::Sequential(*net).to(device);
            const Tensor x = values({2, 5, 8}, 1, float32, device);
            const auto run = [&](const cuda::GemmOptions& options) {
                const GemmOptionsScope scope(options);
                const Tensor y = (*net)(x);
                Tensors all = autograd::grad({y}, net->parameters(),
                                             {.grad_outputs = {values(y.shape(), 2, float32, device)}});
                all.push_back(y);
                return bits(all);
            };
            const Bits apart = run({.fuse_bias_gradients = true});
            CHECK(run({.fuse_layers = true}) == apart);
            CHECK(run({.fuse_layers = true, .relu_masks = true}) == apart);
        }
}

namespace {

// A user's layer, for which a Linear's operator() would be wrong.
struct Negated : nn::Linear {
    using nn::Linear::Linear;
    Tensor operator()(const Tensor& x) const { return -linear(x, weight, bias); }
};

}  // namespace

TEST_CASE("sequential: a class derived from Linear keeps its operator()", "[nn]") {
    const GemmOptionsScope scope({.fuse_layers = GENERATE(false, true)});
    const nn::Linear a(8, 8);
    const Negated b(8, 8);
    const Tensor x = values({5, 8}, 1, float32, cpu_device);
    CHECK(test::doubles(nn::Sequential{a, nn::ReLU(), b}(x)) == test::doubles(b(relu(a(x)))));
    CHECK(test::doubles(nn::Sequential{a, nn::ReLU(), b, nn::ReLU()}(x)) ==
          test::doubles(relu(b(relu(a(x))))));
}

TEST_CASE("transformer: options of fused layers change no value and no gradient", "[nn]") {
    const bool norm_first = GENERATE(false, true);
    const double dropout = GENERATE(0.0, 0.1);
    for (const Device device : both()) {
        manual_seed(4);
        nn::TransformerEncoderLayer layer(8, 2,
                                          {.dim_feedforward = 16,
                                           .dropout = dropout,
                                           .activation = LinearActivation::gelu_tanh,
                                           .norm_first = norm_first});
        layer.to(device);
        const Tensor x = values({2, 3, 8}, 1, float32, device);
        const auto run = [&](const cuda::GemmOptions& options) {
            const GemmOptionsScope scope(options);
            manual_seed(5);
            const Tensor y = layer(x);
            Tensors all = autograd::grad({y}, layer.parameters(),
                                         {.grad_outputs = {values(y.shape(), 2, float32, device)}});
            all.push_back(y);
            return bits(all);
        };
        CHECK(run({.fuse_layers = true}) == run({.fuse_bias_gradients = true}));
    }
}
