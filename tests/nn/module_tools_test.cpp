// Tools for whole modules: clones, snapshots, freezing, apply, lists and dictionaries of modules, look-up in
// states, summaries.
#include <catch2/catch.hpp>

#include "core/memory/flat_view.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/insight/insight.h"
#include "mezzo/insight/summary.h"
#include "mezzo/log.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/resnet.h"
#include "mezzo/train/trainer.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

// A module with a weight that two layers share, modules in a Sequential, a buffer, and a list.
struct Net : nn::Module {
    nn::Linear first{4, 4};
    nn::Sequential body{nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Sequential(nn::Linear(4, 4), nn::Tanh())};
    nn::ModuleList heads{nn::Linear(4, 2), nn::Dropout(0.5)};
    nn::Linear tied{4, 4};
    Net() { tied.weight = first.weight; }
    Tensor operator()(const Tensor& x) const { return heads[0](tied(body(first(x)))); }
    MEZZO_MODULE(Net, first, body, heads, tied)
};

std::vector<double> values_of(const StateDict& state) {
    std::vector<double> all;
    for (const auto& [name, tensor] : state)
        for (const double value : doubles(tensor)) all.push_back(value);
    return all;
}

void fill_all(const nn::Module& net, double value) {
    const NoGrad plain;
    for (const auto& [name, tensor] : net.state_dict()) tensor.fill_(value);
}

}  // namespace

TEST_CASE("clone: nothing is shared, everything is equal", "[module]") {
    Net net;
    net.body.at<nn::BatchNorm1d>(1).running_mean.fill_(3);
    net.body[2].eval();
    net.first.bias.set_requires_grad(false);
    const Net copy = nn::clone(net);
    CHECK(values_of(copy.state_dict()) == values_of(net.state_dict()));
    CHECK(copy.state_dict().names() == net.state_dict().names());
    const Tensor x = randn({8, 4});
    net.eval();
    Net other = nn::clone(net);
    other.eval();
    CHECK(all_close(net(x), other(x), 0, 0));

    const std::vector<double> before = values_of(copy.state_dict());
    fill_all(net, 9);
    CHECK(values_of(copy.state_dict()) == before);
    for (const Tensor& mine : copy.parameters())
        for (const Tensor& theirs : net.parameters()) CHECK(mine.impl() != theirs.impl());

    // Modules shared inside the original are shared inside the copy, and flags are copied.
    CHECK(copy.tied.weight.impl() == copy.first.weight.impl());
    CHECK(copy.num_parameters() == net.num_parameters());
    CHECK_FALSE(copy.first.bias.requires_grad());
    CHECK(copy.first.weight.requires_grad());
    CHECK(copy.first.weight.is_leaf());
    CHECK(copy.training());
    CHECK_FALSE(copy.body[2].training());
    CHECK(copy.body[0].training());
}

TEST_CASE("clone: dtypes, shared handles and joint projections", "[module]") {
    nn::Linear half(3, 2, {.dtype = float16});
    CHECK(nn::clone(half).weight.dtype() == float16);
    CHECK_FALSE(nn::clone(nn::Linear(3, 2, {.bias = false})).bias.defined());

    struct Twice : nn::Module {
        nn::Sequential a{nn::Linear(2, 2)}, b = a;
        MEZZO_MODULE(Twice, a, b)
    } twice;
    const Twice copy = nn::clone(twice);
    CHECK(&copy.a[0] == &copy.b[0]);
    CHECK(&copy.a[0] != &twice.a[0]);

    const nn::BertSelfAttention attention({.vocab_size = 10, .hidden_size = 8, .num_attention_heads = 2});
    const nn::BertSelfAttention other = nn::clone(attention);
    CHECK(directly_behind(other.query.weight, other.key.weight));
    CHECK(directly_behind(other.key.bias, other.value.bias));
    CHECK(all_close(other.value.weight, attention.value.weight, 0, 0));
}

TEST_CASE("clone: training it leaves the original alone", "[module]") {
    manual_seed(1);
    nn::Sequential net{nn::Linear(3, 8), nn::ReLU(), nn::Linear(8, 1)};
    const nn::Sequential target = nn::clone(net);
    const std::vector<double> before = values_of(target.state_dict());
    optim::Adam optimizer(net.parameters(), {.lr = 0.1});
    mse_loss(net(randn({4, 3})), ones({4, 1})).backward();
    CHECK_FALSE(target.parameters()[0].grad().defined());
    optimizer.step();
    CHECK(values_of(target.state_dict()) == before);
    CHECK(values_of(net.state_dict()) != before);
}

TEST_CASE("snapshot keeps the best weights", "[module]") {
    nn::Linear net(2, 2);
    const StateDict best = net.snapshot(), shared = net.state_dict();
    const std::vector<double> before = values_of(best);
    fill_all(net, 5);
    CHECK(values_of(best) == before);
    CHECK(values_of(shared) == std::vector<double>(6, 5));
    net.load_state_dict(best);
    CHECK(values_of(net.state_dict()) == before);
}

TEST_CASE("freeze, unfreeze and num_parameters", "[module]") {
    nn::Sequential net{nn::Linear(3, 4), nn::Linear(4, 2)};
    CHECK(net.num_parameters() == 3 * 4 + 4 + 4 * 2 + 2);
    net[0].freeze();
    CHECK(net.num_parameters(true) == 4 * 2 + 2);
    net(ones({2, 3})).sum().backward();
    CHECK_FALSE(net.at<nn::Linear>(0).weight.grad().defined());
    CHECK(net.at<nn::Linear>(1).weight.grad().defined());
    net.unfreeze();
    CHECK(net.num_parameters(true) == net.num_parameters());
    Net tied;  // the shared weight counts once
    CHECK(tied.num_parameters() == 16 + 4 + 20 + 8 + 20 + 10 + 4);
}

TEST_CASE("apply and named_modules visit every module", "[module]") {
    Net net;
    std::vector<std::string> types, paths;
    net.apply([&](nn::Module& module) { types.emplace_back(module.type_name()); });
    for (const auto& [path, module] : net.named_modules()) paths.push_back(path);
    CHECK(types == std::vector<std::string>{"Linear", "Linear", "BatchNorm1d", "Linear", "Tanh", "Sequential",
                                            "Sequential", "Linear", "Dropout", "ModuleList", "Linear",
                                            "Net"});
    CHECK(paths == std::vector<std::string>{"", "first", "body", "body.0", "body.1", "body.2", "body.2.0",
                                            "body.2.1", "heads", "heads.0", "heads.1", "tied"});
    net.apply([](nn::Module& module) {
        if (auto* const linear = dynamic_cast<nn::Linear*>(&module)) nn::init::zeros_(linear->bias);
    });
    CHECK(doubles(net.tied.bias) == std::vector<double>(4, 0));
}

TEST_CASE("ModuleList and ModuleDict hold modules of any type", "[module]") {
    manual_seed(3);
    nn::ModuleList list{nn::Linear(3, 4), nn::ReLU()};
    list.push_back(nn::Linear(4, 2));
    const Tensor input = randn({5, 3});
    Tensor x = input;
    for (const nn::AnyModule& layer : list) x = layer(x);
    CHECK(x.shape() == Shape{5, 2});
    CHECK(list.size() == 3);
    CHECK(all_close(x, list[2](list[1](list[0](input)))));
    CHECK(list.at<nn::Linear>(2).weight.shape() == Shape{2, 4});
    CHECK(list.state_dict().names() == std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"});
    CHECK_THROWS_WITH(list[3], Contains("no module 3, it has 3"));
    CHECK_THROWS_WITH(list.at<nn::Linear>(1), Contains("it is a ReLU"));
    list.eval();
    CHECK_FALSE(list[0].module().training());

    nn::ModuleDict heads;
    heads.insert("segment", nn::Linear(4, 3));
    heads.insert("depth", nn::MSELoss());
    CHECK(heads.contains("depth"));
    CHECK(heads["segment"](ones({1, 4})).shape() == Shape{1, 3});
    CHECK(heads.at<nn::MSELoss>("depth")(ones({2}), zeros({2})).item<double>() == 1);
    CHECK(heads.state_dict().names() == std::vector<std::string>{"segment.weight", "segment.bias"});
    CHECK_THROWS_WITH(heads["depth"](ones({1})), Contains("MSELoss: no operator() takes one tensor"));
    CHECK_THROWS_WITH(heads["colour"], Contains("no module \"colour\"; there are: segment depth"));
    CHECK_THROWS_WITH(heads.insert("depth", nn::ReLU()), Contains("already"));
    CHECK_THROWS_WITH(heads.insert("a.b", nn::ReLU()), Contains("dot"));
    CHECK_THROWS_WITH(heads.insert("", nn::ReLU()), Contains("empty"));
    std::string names;
    for (const auto& [name, module] : heads) names += name;
    CHECK(names == "segmentdepth");

    nn::ModuleDict copy = nn::clone(heads);
    CHECK(&copy.at<nn::Linear>("segment") != &heads.at<nn::Linear>("segment"));
}

TEST_CASE("hooks of models' blocks, and of copies", "[module]") {
    nn::ResNet net({.layers = {1, 1, 1, 1}, .width = 4, .stem = nn::ResNetStem::cifar, .num_classes = 3});
    Tensor features, gradient;
    net.layer4[0].register_forward_hook(
        [&](const nn::Module&, const Tensors&, Tensors& outputs) { features = outputs[0].detach(); });
    net.layer4[0].register_full_backward_hook(
        [&](Tensors&, const Tensors& outputs) { gradient = outputs[0]; });
    const Tensor images = ones({2, 16, 16, 3});
    sum(net(images)).backward();
    CHECK(features.shape() == gradient.shape());
    CHECK(features.dim() == 4);
    features = gradient = Tensor();
    CHECK_FALSE(nn::clone(net).layer4[0].has_hooks());
    (void)nn::summary(net, images);
    CHECK((features.defined() && net.layer4[0].has_hooks()));

    nn::Bert bert({.vocab_size = 9,
                   .hidden_size = 8,
                   .num_hidden_layers = 1,
                   .num_attention_heads = 2,
                   .intermediate_size = 4,
                   .max_position_embeddings = 5});
    int calls = 0;
    for (const auto& [path, module] : bert.named_modules())
        module->register_forward_pre_hook([&](const nn::Module&, Tensors&) { ++calls; });
    (void)bert(zeros({1, 3}, {.dtype = int64}));
    // The look-up of words, the norm of the embeddings, the layer, and the pooler's Linear: other layers are
    // merged or read as weights.
    CHECK(calls == 4);
}

TEST_CASE("StateDict finds by name and stays a sequence", "[module]") {
    const nn::Linear net(2, 3);
    const StateDict state = net.state_dict();
    CHECK(state["weight"].shape() == Shape{3, 2});
    CHECK(state.at("bias").shape() == Shape{3});
    CHECK(state[1].first == "bias");
    CHECK(state.at(0).first == "weight");
    CHECK(state.contains("bias"));
    CHECK(state.find("nothing") == nullptr);
    CHECK(state.names() == std::vector<std::string>{"weight", "bias"});
    CHECK_THROWS_WITH(state["wieght"], Contains("no \"wieght\" among 2 names: weight, bias"));
    CHECK_THROWS_WITH(StateDict()["x"], Contains("no \"x\" among 0 names"));
    const StateDict own{{"a", ones({1})}, {"b", Tensor()}};
    CHECK(own.clone()["a"].item<int>() == 1);
    CHECK_FALSE(own.clone()["b"].defined());
}

TEST_CASE("summary: shapes, parameters and products of every module", "[module]") {
    struct Small : nn::Module {
        nn::Conv2d conv{3, 8, 3, {.padding = 1}};
        nn::Sequential head{nn::Flatten(), nn::Linear(8 * 4 * 4, 10), nn::ReLU(), nn::Linear(10, 2)};
        nn::BatchNorm2d norm{8}, unused{8};
        Tensor operator()(const Tensor& x) const { return head(norm(conv(x))); }
        MEZZO_MODULE(Small, conv, head, norm, unused)
    } net;
    net.conv.freeze();
    net.head[1].eval();
    const std::vector<double> before = values_of(net.state_dict());
    const nn::Summary summary = nn::summary(net, ones({2, 4, 4, 3}));
    const auto of = [&](const std::string& path) {
        for (const nn::ModuleSummary& module : summary.modules)
            if (module.path == path) return module;
        FAIL(path);
        return nn::ModuleSummary();
    };
    CHECK(of("").output == Shape{2, 2});
    CHECK(of("conv").output == Shape{2, 4, 4, 8});
    CHECK(of("norm").output == Shape{2, 4, 4, 8});
    CHECK(of("head.0").output == Shape{2, 128});
    CHECK(of("conv").parameters == 3 * 3 * 3 * 8 + 8);
    CHECK(of("conv").flops == 2.0 * 2 * 4 * 4 * 8 * 27);
    CHECK(of("head").parameters == 0);
    CHECK(of("head.1").flops == 2.0 * 2 * 128 * 10);
    CHECK(of("head.3").depth == 2);
    CHECK_FALSE(of("unused").ran);
    CHECK(summary.flops == of("conv").flops + of("head").flops);
    CHECK(summary.parameters == net.num_parameters());
    CHECK(summary.trainable == net.num_parameters(true));
    CHECK(summary.buffers == 34);
    CHECK_FALSE(net.conv.weight.requires_grad());
    CHECK(values_of(net.state_dict()) == before);
    CHECK(net.training());
    CHECK_FALSE(net.head[1].training());
    CHECK(net.head[3].training());
    const std::string text = summary.to_string();
    CHECK_THAT(text, Contains("[2, 4, 4, 8]") && Contains("conv: Conv2d") && Contains("parameters: 1,568"));

    const nn::MultiheadAttention attention(8, 2);
    nn::MultiheadAttention mutable_attention = attention;
    const Tensor x = ones({1, 5, 8});
    const nn::Summary attended = nn::summary(mutable_attention, x, x, x);
    CHECK(attended.flops == 2.0 * 5 * 8 * 24 + 4.0 * 5 * 5 * 8 + 2.0 * 5 * 8 * 8);
}

namespace {

// Two modules that list each other.
struct Inner : nn::Module {
    nn::Module* outer = nullptr;
    const char* type_name() const override { return "Inner"; }
    void visit_fields(nn::FieldVisitor& visitor) override {
        if (outer != nullptr) visitor.module("outer", *outer);
    }
};
struct Outer : nn::Module {
    Inner inner;
    nn::Linear linear{2, 2};
    MEZZO_MODULE(Outer, inner, linear)
};

class WithoutLine : public nn::Linear {
public:
    WithoutLine() : nn::Linear(2, 3), scale(ones({3})) {}
    nn::Parameter scale;
};

class WithLine : public nn::Linear {
public:
    WithLine() : nn::Linear(2, 3), scale(ones({3})) {}
    nn::Parameter scale;
    MEZZO_MODULE(WithLine, weight, bias, scale)
};

}  // namespace

TEST_CASE("summary: 8-bit weights, which require no gradient", "[module][quantize]") {
    struct Small : nn::Module {
        nn::Linear body{64, 32}, head{32, 8};
        Tensor operator()(const Tensor& x) const { return head(body(x)); }
        MEZZO_MODULE(Small, body, head)
    } net;
    const nn::Summary before = nn::summary(net, ones({2, 64}));
    nn::quantize_weights(net.body);
    net.head.freeze();
    const nn::Summary summary = nn::summary(net, ones({2, 64}));
    CHECK(summary.modules[1].ran);
    CHECK(summary.modules[1].output == Shape{2, 32});
    CHECK(summary.flops == before.flops);
    CHECK(summary.parameters == before.parameters);
    CHECK(summary.trainable == 32);
    CHECK_FALSE(net.head.weight.requires_grad());
    // The codes, two scales in bfloat16 for each row, and the others in float32.
    CHECK(before.bytes - summary.bytes == 4 * 64 * 32 - (64 * 32 + 2 * 2 * 32));
}

TEST_CASE("summary: the history of a float8 layer stays as it was", "[module]") {
    nn::Linear layer(32, 16);
    optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
    const amp::Fp8State state(layer);
    const auto delayed = [] {
        return amp::AutocastOptions{.dtype = bfloat16,
                                    .fp8 = amp::Fp8{.recipe = amp::Recipe::delayed, .least_size = 16}};
    };
    const auto summarize = [&] {
        const amp::Autocast scope(delayed());
        return nn::summary(layer, full({16, 32}, 100));
    };
    CHECK(summarize().modules[0].ran);
    CHECK(state.state_dict().empty());
    {
        const amp::Autocast scope(delayed());
        layer(ones({16, 32})).sum().backward();
    }
    optimizer.step();
    const std::vector<double> before = values_of(state.state_dict());
    (void)summarize();
    CHECK(values_of(state.state_dict()) == before);
    nn::Sequential wrong{layer, nn::Linear(5, 5)};
    const amp::Autocast scope(delayed());
    CHECK_THROWS_AS(nn::summary(wrong, full({16, 32}, 100)), Error);
    CHECK(values_of(state.state_dict()) == before);
}

TEST_CASE("module: one that contains itself is refused", "[module]") {
    Outer net;
    net.inner.outer = &net;
    const std::string words = "the module contains itself";
    CHECK_THROWS_WITH(net.parameters(), Contains(words));
    CHECK_THROWS_WITH(net.state_dict(), Contains(words));
    CHECK_THROWS_WITH(net.named_modules(), Contains(words));
    CHECK_THROWS_WITH(net.apply([](nn::Module&) {}), Contains(words));
    CHECK_THROWS_WITH(net.train(), Contains(words));
    CHECK_THROWS_WITH(net.to(float64), Contains(words));
    CHECK_THROWS_WITH(net.to_string(), Contains(words));
    CHECK_THROWS_WITH(nn::clone(net), Contains(words));
    CHECK_THROWS_WITH(insight::RangeTrace(net), Contains(words));
    net.inner.outer = nullptr;
    CHECK(net.parameters().size() == 2);  // usable after that
    // Using the same module twice is allowed, and visitors may be nested.
    nn::Linear shared(2, 2);
    nn::Sequential twice{shared, shared};
    twice.apply([&](nn::Module&) { CHECK(twice.parameters().size() == 2); });
    CHECK(twice.to_string().find("(1)") != std::string::npos);
}

TEST_CASE("a module that derives from another without a line of its own is noticed", "[module]") {
    std::vector<std::string> lines;
    set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
    WithoutLine without;
    CHECK(without.parameters().size() == 2);
    CHECK(without.parameters().size() == 2);  // logged once
    CHECK(WithLine().parameters().size() == 3);
    nn::Sequential net{nn::Linear(2, 3), nn::BatchNorm1d(3)};
    CHECK(!net.parameters().empty());
    set_log_sink(nullptr);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("WithoutLine derives from mezzo::nn::Linear and has no MEZZO_MODULE line") !=
          std::string::npos);
}

namespace {

// Has two fields that its MEZZO_MODULE line does not name.
struct Forgetful : nn::Module {
    nn::Linear named{2, 2}, forgotten{2, 2, {.bias = false}};
    nn::Parameter scale = nn::Parameter(ones({3}));
    Tensor operator()(const Tensor& x) const {
        const nn::ModuleScope here(*this);
        const Tensor y = forgotten(named(x));
        return y * scale.slice(0, 0, 2);
    }
    MEZZO_MODULE(Forgetful, named)
};

struct Outside : nn::Module {
    Forgetful inner;
    Tensor operator()(const Tensor& x) const { return inner(x); }
    MEZZO_MODULE(Outside, inner)
};

// Reads only parameters and tensors that a forward may read without listing them.
struct Innocent : nn::Module {
    nn::Linear own{2, 2};
    nn::Linear& of_another_model;
    nn::Parameter of_another_optimizer = nn::Parameter(ones({2}));
    nn::Parameter frozen = nn::Parameter(ones({2}));
    Tensor perturbation = ones({2}, {.requires_grad = true});
    explicit Innocent(nn::Linear& other) : of_another_model(other) { frozen.set_requires_grad(false); }
    Tensor operator()(const Tensor& x) const {
        return of_another_model(own(x + perturbation)) * of_another_optimizer * frozen;
    }
    MEZZO_MODULE(Innocent, own)
};

class LogLines {
public:
    LogLines() {
        set_log_sink([this](std::string_view line) { lines.emplace_back(line); });
    }
    ~LogLines() { set_log_sink(nullptr); }
    std::vector<std::string> lines;
};

template <class Net> void train_two_steps(Net& net, optim::Optimizer& optimizer) {
    data::DataLoader loader({ones({4, 2}), zeros({4, 2})}, {.batch_size = 2});
    training::Trainer trainer(net, optimizer, {.epochs = 1});
    trainer.fit(loader, [&](const data::Batch& batch) { return mse_loss(net(batch.x), batch.y); });
}

}  // namespace

TEST_CASE("module: parameters that forward reads and no module lists", "[module]") {
    const LogLines log;
    Outside net;
    const nn::Summary summary = nn::summary(net, ones({1, 2}));
    const std::vector<std::string> expected{"float32 [2, 2], read by linear in inner",
                                            "float32 [3], read by a view in inner"};
    CHECK(summary.unlisted == expected);
    CHECK_THAT(summary.to_string(), Contains("no module lists a parameter, " + expected[1]));
    REQUIRE(log.lines.size() == 1);
    CHECK_THAT(log.lines[0], Contains("nn::summary: Outside") && Contains(expected[0]) &&
                                 Contains(expected[1]) && Contains("neither trained nor saved"));
    // The first backward of a training reports them; the second step reports nothing.
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    train_two_steps(net, optimizer);
    REQUIRE(log.lines.size() == 2);
    CHECK_THAT(log.lines[1], Contains("Trainer") && Contains("float32 [3]") && Contains("float32 [2, 2]"));
}

TEST_CASE("module: no warning for parameters and tensors that are no forgotten fields", "[module]") {
    const LogLines log;
    nn::Linear other(2, 2);
    optim::SGD others(other.parameters(), {.lr = 0.1});
    Innocent net(other);
    optim::SGD another({net.of_another_optimizer}, {.lr = 0.1});
    const Tensor adversarial = ones({1, 2}, {.requires_grad = true});
    CHECK(nn::summary(net, adversarial).unlisted.empty());
    optim::AveragedModel average(net, {});
    nn::Linear copy = nn::clone(net.own);
    nn::Sequential tuned{copy, nn::ReLU(), nn::BatchNorm1d(2), other};
    tuned[0].freeze();  // as LoRA and fine-tuning do
    CHECK(nn::summary(tuned, adversarial).unlisted.empty());
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    train_two_steps(net, optimizer);
    CHECK(log.lines.empty());
}
