// mlp: what a chain of linear layers as one op must share with the layers one by one.
#include <catch2/catch.hpp>

#include "mezzo/amp.h"
#include "mezzo/cuda.h"
#include "mezzo/nn.h"
#include "mezzo/transformer.h"
#include "tests/support.h"

namespace {

using namespace mezzo;

// The same arithmetic in single layers is that of fuse_bias_gradients.
struct Options {
    explicit Options(const cuda::GemmOptions& options) { cuda::set_gemm_options(options); }
    ~Options() { cuda::set_gemm_options({}); }
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
    Tensor one_by_one(const MlpOptions& options) const {
        Tensor h = x;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const bool activates = i + 1 < weights.size() || options.activate_last;
            h = linear(h, weights[i], biases[i], activates ? options.activation : LinearActivation::none);
        }
        return h;
    }
    Tensor fused(const MlpOptions& options) const { return mlp(x, weights, biases, options); }
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
    MlpOptions options;
};

// y, the gradients of first order, and those of a function of them.
std::pair<Bits, Tensors> run(const Setting& s, Device device, bool fused) {
    const Options scope({.fuse_bias_gradients = true, .relu_masks = s.masks});
    const Chain chain(s.dtype, device, s.biases);
    Tensor y;
    {
        const amp::Autocast low({.device = device.type(), .dtype = bfloat16, .enabled = s.autocast});
        y = fused ? chain.fused(s.options) : chain.one_by_one(s.options);
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

TEST_CASE("mlp: values and gradients are those of the layers one by one, bit for bit", "[mlp]") {
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

TEST_CASE("mlp: gradients of parameters leave 16-bit products in float32", "[mlp][autocast]") {
    for (const Device device : both()) {
        const Chain chain(float32, device);
        {
            const amp::Autocast low({.device = device.type(), .dtype = float16});
            sum(chain.fused({})).backward();
        }
        // Sums of 24 products of 16-bit values have more digits than 16 bits hold.
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

TEST_CASE("mlp: frozen parameters get no gradient and change no other", "[mlp]") {
    const auto frozen =
        GENERATE(std::vector<int>{0}, std::vector<int>{1}, std::vector<int>{1, 4}, std::vector<int>{0, 1, 4},
                 std::vector<int>{0, 1, 2, 4, 5}, std::vector<int>{4, 5, 6},
                 std::vector<int>{1, 2, 3, 4, 5, 6}, std::vector<int>{3, 6});
    const bool last = GENERATE(false, true);
    for (const Device device : both()) {
        const Chain all(float32, device), some(float32, device);
        const Tensors leaves = some.leaves();
        for (int i : frozen) leaves[std::size_t(i)].set_requires_grad(false);
        const Options scope({.relu_masks = true});
        const Tensor y = some.fused({.activate_last = last});
        autograd::backward({y}, {.grad_outputs = {some.factor(y)}});
        const Tensor whole = all.fused({.activate_last = last});
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

TEST_CASE("mlp: a weight twice in one chain gets both gradients", "[mlp]") {
    for (const Device device : both()) {
        const auto gradients = [&](bool fused) {
            const Chain c(float32, device);
            const Tensor w = c.leaf({8, 8}, 20), b = c.leaf({8}, 21);
            Tensor y = mlp(c.x, {w, w}, {b, b}, {LinearActivation::gelu});
            if (!fused) y = linear(linear(c.x, w, b, LinearActivation::gelu), w, b);
            for (int i = 0; i < 2; ++i)  // the second time into gradients that are there
                autograd::backward({y}, {.grad_outputs = {c.factor(y)}, .retain_graph = true});
            return Tensors{w.grad(), b.grad(), c.x.grad()};
        };
        check_close(gradients(true), gradients(false), test::tolerance(float32));
    }
}

TEST_CASE("mlp: gradients are added to those that are there", "[mlp]") {
    for (const Device device : both()) {
        const Chain chain(float32, device);
        const Tensor y = chain.fused({});
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

TEST_CASE("mlp: hooks of parameters see the whole gradient once", "[mlp]") {
    for (const Device device : both()) {
        const Chain plain(float32, device), hooked(float32, device);
        int calls = 0;
        autograd::add_hook(hooked.weights[1], [&](const Tensor& g) {
            ++calls;
            return 2.0 * g;
        });
        for (const Chain* chain : {&plain, &hooked})
            for (int i = 0; i < 2; ++i) sum(chain->fused({LinearActivation::gelu_tanh})).backward();
        CHECK(calls == 2);
        check_close({hooked.weights[1].grad()}, {2.0 * plain.weights[1].grad()}, test::tolerance(float32));
        check_close({hooked.weights[0].grad()}, {plain.weights[0].grad()}, test::tolerance(float32));
    }
}

TEST_CASE("mlp: the gradient refuses what it cannot read any more", "[mlp]") {
    const Chain chain;
    Tensor y = sum(chain.fused({}));
    {
        NoGrad plain;
        chain.weights[1].fill_(1);
    }
    CHECK_THROWS_WITH(y.backward(), Catch::StartsWith("mlp: its input 3 was changed in place"));
    y = sum(chain.fused({}));
    y.backward();
    CHECK_THROWS_WITH(y.backward(), Catch::Contains("retain_graph"));
}

TEST_CASE("mlp: keeps nothing where nothing is recorded", "[mlp]") {
    Chain chain;
    chain.x = values({512, 8}, 1, float32, cpu_device);
    const auto peak = [&] {
        reset_peak(cpu_device);
        const std::size_t before = memory_stats(cpu_device).allocated;
        chain.fused({LinearActivation::gelu});
        return memory_stats(cpu_device).max_allocated - before;
    };
    const std::size_t hidden = 512 * (16 + 24) * sizeof(float), y = 512 * 8 * sizeof(float);
    CHECK(peak() == 2 * hidden + y);  // with the values before each activation
    NoGrad plain;
    CHECK(peak() == hidden + y);
    CHECK(test::doubles(chain.fused({LinearActivation::gelu})) ==
          test::doubles(chain.one_by_one({LinearActivation::gelu})));
}

TEST_CASE("mlp: wrong input is refused", "[mlp]") {
    const Chain c;
    CHECK_THROWS_WITH(mlp(c.x, {}), Catch::StartsWith("mlp: no weights"));
    CHECK_THROWS_WITH(mlp(c.x, c.weights, {c.biases[0]}), Catch::StartsWith("mlp: 1 biases for 3 weights"));
    CHECK_THROWS_WITH(mlp(c.x, {c.weights[0], c.weights[2]}),
                      Catch::StartsWith("mlp: weight 1 is [8, 24], but the layer before it has 16 outputs"));
    CHECK_THROWS_WITH(mlp(c.x, {c.weights[1]}), Catch::StartsWith("mlp: input [5, 8] does not fit weight"));
    CHECK_THROWS_WITH(mlp(c.x, {c.biases[0]}), Catch::StartsWith("mlp: weight [16] is not a matrix"));
    CHECK_THROWS_WITH(mlp(c.x, {c.weights[0]}, {c.biases[1]}), Catch::StartsWith("mlp: bias [24]"));
    CHECK_THROWS_WITH(mlp(c.x, {c.weights[0].to(float16)}), Catch::StartsWith("mlp: operands are"));
    CHECK_THROWS_WITH(mlp(c.x, {c.weights[0], c.weights[1].to(float64)}),
                      Catch::StartsWith("mlp: operands are"));
    CHECK_THROWS_WITH(mlp(scalar(1), {c.weights[0]}), Catch::StartsWith("mlp: input []"));
}

TEST_CASE("sequential: with fuse_layers a run of layers is one mlp", "[nn][mlp]") {
    const auto calls = [](const nn::Sequential& net, const Tensor& x) {
        amp::clear_autocast_report();
        amp::record_autocast_report(true);
        {
            const amp::Autocast low({.device = x.device().type()});
            net(x);
        }
        amp::record_autocast_report(false);
        std::string ops;
        for (const auto& line : amp::autocast_report())
            if (line.op != "cast") ops += line.op + "*" + std::to_string(line.calls) + " ";
        amp::clear_autocast_report();
        return ops;
    };
    manual_seed(3);
    const nn::Linear a(8, 16), b(16, 16), c(16, 8, {.bias = false}), d(8, 8);
    const nn::Sequential relus{a, nn::ReLU(), b, nn::ReLU(), c};
    const nn::Sequential changing{a, nn::ReLU(), b, nn::GELU(), c, nn::GELU(), d, d};
    const nn::Sequential parted{a, nn::ReLU(), nn::Dropout(0.0), b, nn::ReLU(), c, nn::ReLU()};
    for (const Device device : both()) {
        for (const nn::Sequential* net : {&relus, &changing, &parted}) {
            nn::Sequential(*net).to(device);
            const Tensor x = values({5, 8}, 1, float32, device);
            const auto run = [&](const cuda::GemmOptions& options) {
                const Options scope(options);
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
        const Tensor x = values({5, 8}, 1, float32, device);
        CHECK(calls(relus, x) == "linear_relu*2 linear*1 ");
        const Options scope({.fuse_layers = true});
        if (device == cpu_device) {  // options of CUDA
            CHECK(calls(relus, x) == "linear_relu*2 linear*1 ");
            continue;
        }
        CHECK(calls(relus, x) == "mlp*1 ");
        CHECK(calls(changing, x) == "linear_relu*1 mlp*1 linear*1 ");
        CHECK(calls(parted, x).find("linear_relu*1 ") != std::string::npos);
        CHECK(calls(parted, x).find("mlp*1 ") != std::string::npos);
    }
}

namespace {

// A layer of a user's own, for which a Linear's operator() would be wrong.
struct Negated : nn::Linear {
    using nn::Linear::Linear;
    Tensor operator()(const Tensor& x) const { return -linear(x, weight, bias); }
};

}  // namespace

TEST_CASE("sequential: a class derived from Linear keeps its operator()", "[nn][mlp]") {
    const Options scope({.fuse_layers = GENERATE(false, true)});
    const nn::Linear a(8, 8);
    const Negated b(8, 8);
    const Tensor x = values({5, 8}, 1, float32, cpu_device);
    CHECK(test::doubles(nn::Sequential{a, nn::ReLU(), b}(x)) == test::doubles(b(relu(a(x)))));
    CHECK(test::doubles(nn::Sequential{a, nn::ReLU(), b, nn::ReLU()}(x)) ==
          test::doubles(relu(b(relu(a(x))))));
}

TEST_CASE("transformer: with fuse_layers and no dropout the feed-forward part is one mlp", "[nn][mlp]") {
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
            const Options scope(options);
            manual_seed(5);
            const Tensor y = layer(x);
            Tensors all = autograd::grad({y}, layer.parameters(),
                                         {.grad_outputs = {values(y.shape(), 2, float32, device)}});
            all.push_back(y);
            return bits(all);
        };
        CHECK(run({.fuse_layers = true}) == run({.fuse_bias_gradients = true}));
        for (const bool training : {true, false}) {
            layer.train(training);
            amp::clear_autocast_report();
            amp::record_autocast_report(true);
            {
                const Options scope({.fuse_layers = true});
                const amp::Autocast low({.device = device.type()});
                layer(x);
            }
            amp::record_autocast_report(false);
            bool found = false;
            for (const auto& line : amp::autocast_report()) found |= line.op == "mlp";
            amp::clear_autocast_report();
            CHECK(found == (device != cpu_device && (dropout == 0 || !training)));
        }
    }
}
