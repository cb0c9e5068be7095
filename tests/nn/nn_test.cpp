// Modules: fields by name, state, moving, modes, printing; layers, Sequential and its fusion, losses,
// clipping.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>

#include "autograd/autocast_state.h"
#include "core/tensor_impl.h"
#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/io.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/reference/pytorch.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

struct Block : nn::Module {
    nn::Linear inner{2, 2, {.bias = false}};
    nn::Dropout dropout{0.5};
    Tensor operator()(const Tensor& x) const { return dropout(inner(x)); }
    MEZZO_MODULE(Block, inner, dropout)
};

struct Net : nn::Module {
    nn::Parameter scale{ones({1})};
    std::vector<Block> blocks{Block(), Block()};
    nn::Buffer count{zeros({1}, {.dtype = int64})};
    nn::Sequential head{nn::Linear(2, 3), nn::ReLU()};
    Tensor operator()(Tensor x) const {
        for (const Block& block : blocks) x = block(x);
        return head(x * scale);
    }
    MEZZO_MODULE(Net, scale, blocks, count, head)
};

// A module with a weight that two layers share.
struct Tied : nn::Module {
    nn::Linear first{2, 2}, second{2, 2};
    Tied() { second.weight = first.weight; }
    MEZZO_MODULE(Tied, first, second)
};

std::vector<std::string> names(const StateDict& state) {
    std::vector<std::string> result;
    for (const auto& [name, value] : state) result.push_back(name);
    return result;
}

}  // namespace

TEST_CASE("module: names follow the fields", "[nn]") {
    const Net net;
    using Names = std::vector<std::string>;
    CHECK(names(net.named_parameters()) ==
          Names{"scale", "blocks.0.inner.weight", "blocks.1.inner.weight", "head.0.weight", "head.0.bias"});
    CHECK(names(net.named_buffers("net")) == Names{"net.count"});
    CHECK(names(net.state_dict()) == Names{"scale", "blocks.0.inner.weight", "blocks.1.inner.weight", "count",
                                           "head.0.weight", "head.0.bias"});
    CHECK(net.parameters().size() == 5);
    for (const Tensor& p : net.parameters()) CHECK(p.requires_grad());
    CHECK(net.to_string() ==
          "Net(\n"
          "  (blocks.0): Block(\n"
          "    (inner): Linear(in_features=2, out_features=2, bias=false)\n"
          "    (dropout): Dropout(p=0.5)\n"
          "  )\n"
          "  (blocks.1): Block(\n"
          "    (inner): Linear(in_features=2, out_features=2, bias=false)\n"
          "    (dropout): Dropout(p=0.5)\n"
          "  )\n"
          "  (head): Sequential(\n"
          "    (0): Linear(in_features=2, out_features=3, bias=true)\n"
          "    (1): ReLU()\n"
          "  )\n"
          ")");
}

TEST_CASE("module: arrays, and fields that may be empty", "[nn]") {
    struct Net : nn::Module {
        std::array<nn::Linear, 2> pair{nn::Linear(2, 3), nn::Linear(3, 2, {.bias = false})};
        std::optional<nn::LayerNorm> norm;
        std::optional<nn::Parameter> scale{ones({2})};
        std::vector<std::optional<nn::Linear>> some{std::nullopt, nn::Linear(2, 2, {.bias = false})};
        MEZZO_MODULE(Net, pair, norm, scale, some)
    } net;
    const std::vector<std::string> without{"pair.0.weight", "pair.0.bias", "pair.1.weight", "scale",
                                           "some.1.weight"};
    CHECK(net.state_dict().names() == without);
    Net with = nn::clone(net);
    with.norm.emplace(2);
    CHECK(with.parameters().size() == without.size() + 2);
    CHECK_THROWS_WITH(net.load_state_dict(with.state_dict()), Contains("unexpected: norm.weight norm.bias"));
    const Net copy = nn::clone(with);
    with.norm->weight.detach().fill_(7);
    with.pair[0].weight.detach().fill_(7);
    CHECK(copy.norm->weight.to_vector<int>() == std::vector<int>{1, 1});
    CHECK_FALSE(all_close(copy.pair[0].weight, with.pair[0].weight));
    with.eval();
    CHECK_FALSE(with.norm->training());
}

TEST_CASE("module: a parameter used twice is listed once", "[nn]") {
    nn::Linear shared(2, 2);
    const nn::Sequential net{shared, nn::Tanh(), shared};
    CHECK(net.parameters().size() == 2);
    CHECK(names(net.named_parameters()) == std::vector<std::string>{"0.weight", "0.bias"});
}

TEST_CASE("module: state goes from one to another", "[nn]") {
    Net a, b;
    {
        NoGrad plain;
        a.count.fill_(7);
    }
    const Tensor same = b.scale;
    b.load_state_dict(a.state_dict());
    CHECK(same.impl() == b.scale.impl());
    CHECK(b.count.item<int>() == 7);
    const StateDict x = a.state_dict(), y = b.state_dict();
    for (std::size_t i = 0; i < x.size(); ++i) {
        CHECK(x[i].second.to_vector<double>() == y[i].second.to_vector<double>());
        CHECK_FALSE(x[i].second.requires_grad());
    }
}

TEST_CASE("module: a wrong state names what is wrong and changes nothing", "[nn]") {
    Net net;
    const std::vector<float> before = floats(net.blocks[0].inner.weight);
    StateDict wrong = Net().state_dict();
    wrong[0].first = "scala";
    wrong[4].second = zeros({2, 2});
    CHECK_THROWS_WITH(net.load_state_dict(wrong), Contains("missing: scale;") &&
                                                      Contains("unexpected: scala;") &&
                                                      Contains("shape: head.0.weight"));
    CHECK(floats(net.blocks[0].inner.weight) == before);
    CHECK_THROWS_WITH(net.load_state_dict(wrong, false),
                      Contains("missing: none") && Contains("head.0.weight"));
    wrong.erase(wrong.begin() + 4);
    CHECK_THROWS_AS(net.load_state_dict(wrong), Error);
    net.load_state_dict(wrong, false);
    CHECK(floats(net.blocks[0].inner.weight) == floats(wrong[1].second));
    for (const bool strict : {true, false}) {
        StateDict twice = net.snapshot();
        twice.push_back({twice[1].first, zeros(twice[1].second.shape())});
        CHECK_THROWS_WITH(net.load_state_dict(twice, strict), Contains(twice[1].first + " is there twice"));
        CHECK(floats(net.blocks[0].inner.weight) == floats(wrong[1].second));
        twice.back().second = twice[1].second.clone();
        net.load_state_dict(twice, strict);
    }
}

TEST_CASE("module: a tied weight loads by each of its names", "[nn]") {
    // PyTorch's state_dict() has both names; this one has the first.
    const StateDict one = Tied().snapshot();
    REQUIRE(names(one) == std::vector<std::string>{"first.weight", "first.bias", "second.bias"});
    StateDict both = one, other = one;
    both.emplace_back("second.weight", one[0].second.clone());
    other[0].first = "second.weight";
    for (const StateDict& state : {one, both, other}) {
        Tied net, strict;
        net.load_state_dict(state);
        CHECK(floats(net.first.weight) == floats(one[0].second));
        CHECK(net.second.weight.impl() == net.first.weight.impl());
        const io::LoadReport report = io::load_weights(strict, state, {.strict = true});
        CHECK(report.to_string() == "loaded 3, missing 0, of another shape 0, unexpected 0");
        CHECK(floats(strict.first.weight) == floats(one[0].second));
    }
    Tied net;
    const std::vector<float> before = floats(net.first.weight);
    both[3].second = one[0].second + 1.0;
    CHECK_THROWS_WITH(net.load_state_dict(both),
                      Contains("first.weight and second.weight are both first.weight, with other values"));
    both[3].second = zeros({2, 3});
    CHECK_THROWS_WITH(net.load_state_dict(both), Contains("shape: second.weight ([2, 3], not [2, 2])"));
    CHECK(floats(net.first.weight) == before);
    both[0].second = full({2, 2}, NAN);
    both[3].second = both[0].second.clone();
    net.load_state_dict(both);
    CHECK(std::isnan(floats(net.second.weight)[3]));
}

TEST_CASE("module: to() keeps the tensors' identity, so optimizers stay valid", "[nn]") {
    nn::Linear layer(2, 1);
    optim::SGD optimizer(layer.parameters(), {.lr = 1, .momentum = 0.5});
    const Tensor handle = layer.weight;
    const auto step = [&] {
        optimizer.zero_grad();
        sum(layer(ones({1, 2}, {.dtype = layer.weight.dtype()}))).backward();
        optimizer.step();
    };
    step();
    const std::vector<float> before = floats(layer.weight);
    layer.to(float64);
    CHECK(handle.dtype() == float64);
    CHECK(handle.impl() == layer.weight.impl());
    CHECK(layer.weight.grad().dtype() == float64);
    CHECK(layer.weight.requires_grad());
    CHECK(floats(layer.weight) == before);
    step();
    CHECK(floats(layer.weight)[0] == Approx(before[0] - 1.5));  // the momentum came along
    Net net;
    net.to(float16);
    CHECK(net.scale.dtype() == float16);
    CHECK(net.count.dtype() == int64);
    CHECK_THROWS_AS(net.to(int64), Error);
}

TEST_CASE("module: to() makes casts of the old elements stale", "[nn]") {
    nn::Linear layer(1, 1, {.bias = false});
    {
        NoGrad plain;
        layer.weight.fill_(1);
    }
    amp::Autocast scope;
    CHECK(layer(ones({1, 1})).item<float>() == 1);
    const std::uint64_t cached = layer.weight.version();
    layer.weight->grad_meta->copy16.value = ones({1, 1}, {.dtype = float16});
    layer.to(float64);
    CHECK_FALSE(layer.weight->grad_meta->copy16.value.defined());
    layer.to(float32);
    NoGrad plain;
    do layer.weight.fill_(2);
    while (layer.weight.version() < cached);  // new elements must not come to the version of the old ones
    CHECK(layer(ones({1, 1})).item<float>() == 2);
}

TEST_CASE("module: train, eval, zero_grad", "[nn]") {
    Net net;
    CHECK(net.blocks[1].dropout.training());
    net.eval();
    CHECK_FALSE(net.blocks[1].dropout.training());
    CHECK_FALSE(net.head.training());
    const Tensor x = ones({64, 2});
    CHECK(floats(net(x)) == floats(net(x)));
    net.train();
    manual_seed(3);
    CHECK(floats(net.blocks[0](x)) != floats(net.blocks[0](x)));
    sum(net(x)).backward();
    CHECK(net.scale.grad().defined());
    net.zero_grad(false);
    CHECK(net.scale.grad().item<float>() == 0);
    net.zero_grad();
    CHECK_FALSE(net.scale.grad().defined());
}

TEST_CASE("module: copies share parameters", "[nn]") {
    const nn::Linear a(2, 2);
    const nn::Linear b = a;
    CHECK(a.weight.impl() == b.weight.impl());
    CHECK_THROWS_AS(nn::Parameter(arange(3)), Error);
}

TEST_CASE("linear: values and initialisation", "[nn]") {
    manual_seed(1);
    const nn::Linear layer(400, 300);
    for (const Tensor& p : layer.parameters()) {
        double lowest = 0, highest = 0, total = 0;
        for (const float v : floats(p)) {
            lowest = std::min(lowest, double(v));
            highest = std::max(highest, double(v));
            total += double(v);
        }
        CHECK(lowest >= -0.05);  // 1 / sqrt(400)
        CHECK(highest <= 0.05);
        CHECK(highest > 0.049);
        CHECK(std::abs(total / double(p.numel())) < 0.005);
    }
    nn::Linear small(2, 1);
    NoGrad plain;
    small.weight.copy_(Tensor::from({2, 3}, {1, 2}));
    small.bias.fill_(1);
    CHECK(floats(small(Tensor::from({1, 1, 10, 100}, {2, 2}))) == std::vector<float>{6, 321});
    CHECK_THROWS_AS(nn::Linear(-1, 2), Error);
    CHECK_THROWS_AS(nn::Dropout(1.5), Error);
}

TEST_CASE("activations are the functions of their names", "[nn]") {
    const Tensor x = Tensor::from({-2, -0.5, 0, 1, 3});
    CHECK(floats(nn::ReLU()(x)) == floats(relu(x)));
    CHECK(floats(nn::GELU()(x)) == floats(gelu(x)));
    CHECK(floats(nn::GELU({.approximate_tanh = true})(x)) == floats(gelu_tanh(x)));
    CHECK(floats(nn::Tanh()(x)) == floats(tanh(x)));
    CHECK(floats(nn::Sigmoid()(x)) == floats(sigmoid(x)));
    CHECK(floats(nn::SiLU()(x)) == floats(silu(x)));
    CHECK(floats(nn::Softsign()(x)) == floats(x / (abs(x) + 1.0)));
    CHECK(floats(nn::Softmax()(x)) == floats(softmax(x)));
    CHECK(floats(nn::LogSoftmax()(x)) == floats(log_softmax(x)));
    CHECK(nn::Flatten()(zeros({2, 3, 4})).shape() == Shape{2, 12});
}

TEST_CASE("sequential: fused neighbours give what the single layers give", "[nn]") {
    manual_seed(5);
    nn::Linear first(6, 8), second(8, 8), third(8, 2);
    const nn::GELU exact, approximate({.approximate_tanh = true});
    const nn::Sequential net{first, nn::ReLU(), second, exact, third, approximate};
    const Tensor x = randn({5, 6});
    const Tensor fused = net(x), plain = approximate(third(exact(second(nn::ReLU()(first(x))))));
    CHECK(all_close(fused, plain, 1e-5, 1e-6));
    const Tensors a = autograd::grad({sum(square(fused))}, net.parameters());
    const Tensors b = autograd::grad({sum(square(plain))}, net.parameters());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(all_close(a[i], b[i], 1e-4, 1e-5));
    CHECK(net.size() == 6);
    CHECK(net.at<nn::Linear>(2).weight.impl() == second.weight.impl());
    CHECK_THROWS_WITH(net.at<nn::ReLU>(0), Contains("module 0 is a Linear"));
    CHECK_THROWS_AS(net[6], Error);
}

TEST_CASE("sequential: a chain of layers runs as fused ops", "[nn]") {
    const nn::Sequential net{nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2), nn::GELU()};
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    {
        amp::Autocast scope;
        net(ones({1, 2}));
        net(ones({1, 2}));
        CHECK(autocast_counters().cache_entries == 4);  // parameters are leaves that the cast cache keeps
    }
    amp::collect_autocast_report(false);
    std::uint64_t fused = 0, single = 0;
    for (const auto& line : amp::autocast_report()) {
        if (line.op == "linear_relu" || line.op == "linear_gelu") fused += line.calls;
        if (line.op == "linear" || line.op == "relu" || line.op == "gelu") single += line.calls;
    }
    CHECK(fused == 4);
    CHECK(single == 0);
    amp::clear_autocast_report();
}

TEST_CASE("sequential: nests, grows and shares", "[nn]") {
    nn::Sequential outer{nn::Sequential(nn::Linear(2, 3), nn::Tanh()), nn::Linear(3, 1)};
    CHECK(names(outer.named_parameters()) ==
          std::vector<std::string>{"0.0.weight", "0.0.bias", "1.weight", "1.bias"});
    outer.push_back(Block());
    const nn::Sequential copy = outer;
    outer.eval();
    CHECK_FALSE(copy.at<Block>(2).dropout.training());
    CHECK(floats(nn::Sequential()(ones({2}))) == std::vector<float>{1, 1});
}

namespace {

template <class Loss, std::size_t n> void loss_matches(const float (&expected)[1][n], const Loss& loss,
                                                       const Tensor& input, const Tensor& target) {
    for (const Device device : test::devices()) {
        const Tensor x = input.to(device).detach().clone().set_requires_grad();
        const Tensor y = loss(x, target.to(device));
        INFO(loss.type_name());
        CHECK(y.item<float>() == Approx(expected[0][0]).epsilon(2e-6));
        y.backward();
        const std::vector<float> gradient = floats(x.grad());
        REQUIRE(gradient.size() + 1 == n);
        for (std::size_t i = 0; i < gradient.size(); ++i)
            CHECK(gradient[i] == Approx(expected[0][i + 1]).epsilon(2e-5).margin(1e-7));
    }
}

Tensor table(const float (&values)[4][3]) { return Tensor::from<float>({&values[0][0], 12}, {4, 3}); }

}  // namespace

TEST_CASE("losses follow PyTorch", "[nn]") {
    const Tensor logits = table(reference::logits), other = table(reference::other),
                 unit = table(reference::unit);
    const Tensor targets = Tensor::from(std::vector<std::int64_t>{0, 2, -100, 1}, {4});
    loss_matches(reference::cross_entropy, nn::CrossEntropyLoss(), logits, targets);
    loss_matches(reference::cross_entropy_smoothed, nn::CrossEntropyLoss({.label_smoothing = 0.1}), logits,
                 targets);
    loss_matches(reference::nll, nn::NLLLoss(), log_softmax(logits), targets);
    loss_matches(reference::mse, nn::MSELoss(), logits, other);
    loss_matches(reference::l1, nn::L1Loss({.reduction = Reduction::sum}), logits, other);
    loss_matches(reference::smooth_l1, nn::SmoothL1Loss({.beta = 0.5}), logits, other);
    loss_matches(reference::bce_logits, nn::BCEWithLogitsLoss(), logits, unit);
    loss_matches(reference::bce, nn::BCELoss(), unit, sigmoid(other));
}

TEST_CASE("clipping by norm and by value", "[nn]") {
    for (const Device device : test::devices()) {
        const Tensor a = zeros({2}, {.device = device}).set_requires_grad(),
                     b = zeros({1}, {.device = device}).set_requires_grad();
        const Tensor idle = zeros({1}, {.device = device}).set_requires_grad();
        a.set_grad(Tensor::from({3, 0}).to(device));
        b.set_grad(Tensor::from({4}).to(float16).to(device));
        CHECK(nn::clip_grad_norm_({a, b, idle}, 10).item<float>() == Approx(5));
        CHECK(floats(a.grad()) == std::vector<float>{3, 0});
        const std::uint64_t version = a.grad().version();
        CHECK(nn::clip_grad_norm_({a, b, idle}, 2.5).item<float>() == Approx(5));
        CHECK(a.grad().version() > version);
        CHECK(floats(a.grad())[0] == Approx(1.5).epsilon(1e-5));
        CHECK(b.grad().item<float>() == Approx(2).epsilon(1e-3));
        nn::clip_grad_value_({a, b, idle}, 1);
        CHECK(floats(a.grad()) == std::vector<float>{1, 0});
        CHECK(b.grad().item<float>() == 1);
        CHECK(nn::clip_grad_norm_({idle}, 1).item<float>() == 0);
    }
    CHECK_THROWS_AS(nn::clip_grad_norm_({}, -1), Error);
    CHECK_THROWS_AS(nn::clip_grad_value_({}, -1), Error);
}

TEST_CASE("embedding and normalisation layers", "[nn]") {
    manual_seed(4);
    const nn::Embedding table(500, 8, {.padding_idx = 2});
    const std::vector<double> values = table.weight.to_vector<double>();
    double squares = 0;
    for (const double v : values) squares += v * v;
    CHECK(squares / double(values.size()) == Approx(1).epsilon(0.1));
    CHECK(floats(table.weight[2]) == std::vector<float>(8, 0));
    const Tensor index = Tensor::from(std::vector<std::int64_t>{7, 2, 7}, {3, 1});
    const Tensor rows = table(index);
    CHECK(rows.shape() == Shape{3, 1, 8});
    CHECK(floats(rows.select(1, 0)[2]) == floats(table.weight[7]));
    sum(rows).backward();
    CHECK(floats(table.weight.grad()[7]) == std::vector<float>(8, 2));
    CHECK(floats(table.weight.grad()[2]) == std::vector<float>(8, 0));

    const nn::LayerNorm norm(3, {.eps = 0.5}), plain(3, {.bias = false});
    const nn::RMSNorm rms(3, {.eps = 0.25});
    CHECK(floats(norm.weight) == std::vector<float>(3, 1));
    CHECK(floats(norm.bias) == std::vector<float>(3, 0));
    CHECK(names(norm.state_dict()) == std::vector<std::string>{"weight", "bias"});
    CHECK(names(plain.state_dict()) == std::vector<std::string>{"weight"});
    CHECK(names(rms.state_dict()) == std::vector<std::string>{"weight"});
    const Tensor x = Tensor::from({1, 2, 3}, {1, 3});
    CHECK(floats(norm(x))[2] == Approx(1 / std::sqrt(2.0 / 3 + 0.5)));
    CHECK(floats(plain(x))[2] == Approx(1 / std::sqrt(2.0 / 3 + 1e-5)));
    CHECK(floats(rms(x))[2] == Approx(3 / std::sqrt(14.0 / 3 + 0.25)));
    CHECK((norm.is_normalization() && rms.is_normalization() && !table.is_normalization()));
    CHECK(table.to_string() == "Embedding(num_embeddings=500, embedding_dim=8, padding_idx=2)");
    CHECK(norm.to_string() == "LayerNorm(3, eps=0.5, bias=true)");
    CHECK(rms.to_string() == "RMSNorm(3, eps=0.25)");
    CHECK_THROWS_WITH(nn::Embedding(5, 2, {.padding_idx = 5}), Contains("padding_idx 5"));
    CHECK_THROWS_WITH(nn::Embedding(-1, 2), Contains("-1 rows"));
    CHECK_THROWS_WITH(nn::LayerNorm(0), Contains("n is 0"));
    CHECK_THROWS_WITH(nn::RMSNorm(3, {.eps = -1}), Contains("eps -1"));
}
