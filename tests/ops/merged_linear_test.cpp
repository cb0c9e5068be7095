// merged_linear beyond its cases in op_cases_attention.cpp: the memory layout of weights, gradients and
// 16-bit copies, and that results do not depend on it.
#include <catch2/catch.hpp>

#include "autograd/autocast_state.h"
#include "core/memory/flat_view.h"
#include "mezzo/amp.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/models/bert.h"
#include "mezzo/optim.h"
#include "nn/replace.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using test::doubles;

constexpr std::int64_t inner = 6;
const std::int64_t sizes[] = {4, 8, 5};

Tensor values(const Shape& shape, std::uint64_t seed, Dtype dtype = float32, Device device = cpu_device) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype, device);
}

enum class Weights { placed, apart, one_twice, one_frozen, float16_beside_float32 };

// Three linear layers with the same input.
struct Layers {
    Tensor x;
    Tensors weights, biases;
    Dtype dtype;

    Layers(Weights kind, Dtype type, Device device) : dtype(type) {
        x = values({2, 5, inner}, 1, dtype, device).set_requires_grad();
        for (std::uint64_t i = 0; i < 3; ++i) {
            const bool narrow = kind == Weights::float16_beside_float32 && i == 1;
            const Dtype own = narrow ? float16 : dtype;
            weights.push_back(values({sizes[i], inner}, 2 + i, own, device).set_requires_grad());
            biases.push_back(values({sizes[i]}, 5 + i, own, device).set_requires_grad());
        }
        if (kind == Weights::placed) {
            nn::place_side_by_side(weights);
            nn::place_side_by_side(biases);
        }
        if (kind == Weights::one_twice) weights[2] = weights[0];
        if (kind == Weights::one_twice) biases[2] = biases[0];
        if (kind == Weights::one_frozen) weights[1].set_requires_grad(false);
    }
    Tensor together() const { return merged_linear(x, weights, biases); }
    Tensor separately() const {
        Tensors results;
        for (std::size_t i = 0; i < 3; ++i) results.push_back(linear(x, weights[i], biases[i]));
        return cat(results, -1);
    }
    // Backward of <y, a fixed vector>, in the scope's dtype.
    void backward(const Tensor& y) const {
        const Tensor seed = values(y.shape(), 9, float32, y.device()).to(y.dtype());
        autograd::backward({y}, {.grad_outputs = {seed}});
    }
    Tensors leaves() const {
        Tensors all{x};
        all.insert(all.end(), weights.begin(), weights.end());
        all.insert(all.end(), biases.begin(), biases.end());
        return all;
    }
    Tensors gradients(const Tensors& of) const {
        Tensors result;
        for (const Tensor& leaf : of) result.push_back(leaf.grad());
        return result;
    }
};

// In 16 bit, the merged layers round sums of x's gradient once, the separate ones after each addition.
void check_like(const Layers& together, const Layers& separate) {
    const Tensors a = together.leaves(), b = separate.leaves();
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(i);
        REQUIRE(a[i].grad().defined() == b[i].grad().defined());
        if (!a[i].grad().defined()) continue;
        CHECK(a[i].grad().dtype() == b[i].grad().dtype());
        test::Tolerance allowed = test::tolerance(together.dtype);
        allowed.absolute *= 16;
        allowed.relative *= 16;
        CHECK(test::difference(doubles(a[i].grad()), doubles(b[i].grad()), allowed) == "");
    }
}

bool lie_side_by_side(const Tensors& tensors) { return as_one(tensors).defined(); }

// Changes gradients between the first backward and the second.
using Between = void (*)(const Layers&);

const Between nothing = [](const Layers&) {};
const Between cleared = [](const Layers& l) {
    for (const Tensor& x : l.leaves()) x.set_grad({});
};
const Between one_cleared = [](const Layers& l) { l.weights[1].set_grad({}); };
const Between one_replaced = [](const Layers& l) {
    if (l.weights[1].grad().defined()) l.weights[1].set_grad(l.weights[1].grad().clone());
};
const Between hook_set = [](const Layers& l) {
    if (l.weights[0].requires_grad())
        autograd::add_hook(l.weights[0], [](const Tensor& g) { return g * 2.0; });
};

}  // namespace

TEST_CASE("merged_linear: gradients are those of separate layers, wherever they lie", "[linear]") {
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, bfloat16, float64})
            for (const Weights kind :
                 {Weights::placed, Weights::apart, Weights::one_twice, Weights::one_frozen})
                for (const Between between : {nothing, cleared, one_cleared, one_replaced, hook_set}) {
                    CAPTURE(name(device.type()), name(dtype), int(kind), int(between == one_cleared));
                    const Layers a(kind, dtype, device), b(kind, dtype, device);
                    for (int round = 0; round < 2; ++round) {
                        const Tensor y = a.together(), reference = b.separately();
                        CHECK(test::difference(doubles(y), doubles(reference), test::tolerance(dtype)) == "");
                        a.backward(y);
                        b.backward(reference);
                        check_like(a, b);
                        between(a);
                        between(b);
                    }
                }
}

TEST_CASE("merged_linear: float32 weights under autocast", "[linear]") {
    for (const Device device : test::devices())
        for (const Weights kind :
             {Weights::placed, Weights::apart, Weights::one_frozen, Weights::float16_beside_float32}) {
            CAPTURE(name(device.type()), int(kind));
            Layers a(kind, float32, device), b(kind, float32, device);
            a.dtype = float16;  // of the arithmetic
            for (int round = 0; round < 2; ++round) {
                const amp::Autocast scope({.device = device.type(), .dtype = float16});
                a.backward(a.together());
                b.backward(b.separately());
                check_like(a, b);
                CHECK(a.weights[0].grad().dtype() == float32);
            }
        }
}

TEST_CASE("merged_linear: weights' gradients lie side by side and are added to in place", "[linear]") {
    for (const Device device : test::devices()) {
        const Layers layers(Weights::apart, float32, device);
        layers.backward(layers.together());
        const Tensors first = layers.gradients(layers.weights);
        CHECK(lie_side_by_side(first));
        CHECK(lie_side_by_side(layers.gradients(layers.biases)));
        std::vector<std::uint64_t> versions;
        std::vector<std::vector<double>> once;
        for (const Tensor& g : first) versions.push_back(g.version());
        for (const Tensor& g : first) once.push_back(doubles(g));
        layers.backward(layers.together());
        for (std::size_t i = 0; i < 3; ++i) {
            const Tensor g = layers.weights[i].grad();
            CHECK(g.impl() == first[i].impl());
            CHECK(g.version() > versions[i]);
            for (double& v : once[i]) v *= 2;
            CHECK(test::difference(doubles(g), once[i], test::tolerance(float32)) == "");
        }
        // Each gradient is a tensor of its own: writing to one leaves the others and their versions alone.
        const std::uint64_t before = first[2].version();
        first[1].zero_();
        CHECK(first[2].version() == before);
        CHECK(test::difference(doubles(first[2]), once[2], test::tolerance(float32)) == "");
    }
}

TEST_CASE("merged_linear: zeros in place of gradients, with a scaler", "[linear][amp]") {
    const Layers layers(Weights::placed, float32, cpu_device);
    optim::SGD optimizer(layers.leaves(), {.lr = 0.01});
    amp::GradScaler scaler({.init_scale = 64});
    const Layers reference(Weights::placed, float32, cpu_device);
    optim::SGD plain(reference.leaves(), {.lr = 0.01});
    for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad(false);
        scaler.scale(sum(square(layers.together()))).backward();
        scaler.step(optimizer);
        scaler.update();
        plain.zero_grad();
        sum(square(reference.separately())).backward();
        plain.step();
    }
    CHECK(optimizer.applied_steps() == 3);
    for (std::size_t i = 0; i < layers.leaves().size(); ++i)
        CHECK(test::difference(doubles(layers.leaves()[i]), doubles(reference.leaves()[i]), {1e-4, 1e-5}) ==
              "");
}

TEST_CASE("merged_linear: an in-place write to one weight is noticed, to its neighbour's copy not",
          "[linear]") {
    const Layers layers(Weights::placed, float32, cpu_device);
    const Tensor y = layers.together();
    {
        NoGrad plain;
        layers.weights[1].add_(layers.weights[1]);
    }
    CHECK_THROWS_WITH(layers.backward(y), Contains("merged_linear: its input 2 was changed in place"));
    // The other weights are unchanged.
    CHECK(layers.weights[0].version() == layers.weights[2].version());
    CHECK(layers.weights[1].version() > layers.weights[0].version());
}

TEST_CASE("merged_linear: a layer without a bias beside layers with one", "[linear]") {
    const Layers layers(Weights::placed, float32, cpu_device);
    const Tensor y = merged_linear(layers.x, layers.weights, {layers.biases[0], Tensor(), layers.biases[2]});
    const Tensor expected =
        cat({linear(layers.x, layers.weights[0], layers.biases[0]), linear(layers.x, layers.weights[1]),
             linear(layers.x, layers.weights[2], layers.biases[2])},
            -1);
    CHECK(test::difference(doubles(y), doubles(expected), test::tolerance(float32)) == "");
    CHECK(all_close(merged_linear(layers.x, layers.weights, {Tensor(), Tensor(), Tensor()}),
                    merged_linear(layers.x, layers.weights)));
}

TEST_CASE("packed_attention: the same bits as with three tensors", "[attention]") {
    const AttentionOptions variants[] = {{}, {.causal = true}, {.dropout_p = 0.3}, {.scale = 0.5}};
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, bfloat16, float16, float64})
            for (const AttentionOptions& options : variants) {
                CAPTURE(name(device.type()), name(dtype), options.causal, options.dropout_p);
                const Tensor qkv = values({2, 37, 3, 2, 32}, 1, dtype, device).set_requires_grad();
                const Tensor same = qkv.detach().clone().set_requires_grad();
                const auto heads = [&](int i) { return same.select(2, i).permute({0, 2, 1, 3}); };
                manual_seed(5);
                const Tensor y = packed_attention(qkv, options);
                manual_seed(5);
                const Tensor expected =
                    scaled_dot_product_attention(heads(0), heads(1), heads(2), options).permute({0, 2, 1, 3});
                CHECK(y.shape() == expected.shape());
                CHECK(doubles(y) == doubles(expected));
                const Tensor g = values(y.shape(), 2, dtype, device);
                y.backward({.gradient = g});
                expected.backward({.gradient = g});
                CHECK(doubles(qkv.grad()) == doubles(same.grad()));
            }
}

TEST_CASE("merged_linear: errors", "[linear]") {
    const Tensor x = ones({2, 6}), w = ones({3, 6});
    CHECK_THROWS_WITH(merged_linear(x, {}), "merged_linear: the list of weights is empty");
    CHECK_THROWS_WITH(merged_linear(x, {w, w}, {ones({3})}),
                      Contains("merged_linear: 1 biases for 2 weights"));
    CHECK_THROWS_WITH(merged_linear(x, {w, ones({3, 5})}),
                      Contains("merged_linear: input [2, 6] does not fit"));
    CHECK_THROWS_WITH(merged_linear(x, {w, w}, {ones({3}), ones({4})}), Contains("merged_linear: bias [4]"));
    CHECK_THROWS_WITH(merged_linear(x, {w, ones({3, 6}, {.dtype = float64})}),
                      Contains("merged_linear: operands"));
    CHECK_THROWS_WITH(merged_linear(x, {w, Tensor()}), Contains("merged_linear"));
    CHECK_THROWS_WITH(
        packed_attention(ones({2, 4, 2, 1, 8})),
        Contains("packed_attention: qkv must be [batch, length, 3, heads, dim], not [2, 4, 2, 1, 8]"));
    CHECK_THROWS_WITH(packed_attention(Tensor()), Contains("packed_attention"));
    CHECK_THROWS_WITH(packed_attention(ones({2, 4, 3, 1, 8}), {.mask = ones({5})}),
                      Contains("packed_attention: mask [5] does not broadcast"));
    CHECK_THROWS_WITH(packed_attention(ones({2, 4, 3, 1, 8}), {.dropout_p = 1}),
                      Contains("packed_attention"));
}

TEST_CASE("side by side: what counts as one tensor", "[linear]") {
    const Tensor all = values({9, 4}, 1);
    const Tensor one = as_one(Tensors{all.slice(0, 0, 2), all.slice(0, 2, 9)});
    REQUIRE(one.defined());
    CHECK(one.shape() == all.shape());
    CHECK(doubles(one) == doubles(all));
    CHECK_FALSE(as_one({}).defined());
    CHECK_FALSE(lie_side_by_side({Tensor(), all}));
    CHECK_FALSE(lie_side_by_side({all.slice(0, 2, 9), all.slice(0, 0, 2)}));  // in another order
    CHECK_FALSE(lie_side_by_side({all.slice(0, 0, 2), all.slice(0, 3, 9)}));  // with a gap
    CHECK_FALSE(lie_side_by_side({all.slice(1, 0, 2), all.slice(1, 2, 4)}));  // not contiguous
    CHECK_FALSE(lie_side_by_side({all.slice(0, 0, 2), all.slice(0, 2, 4).reshape({4, 2})}));
    CHECK_FALSE(lie_side_by_side({zeros({0, 4}), zeros({0, 4})}));
    const std::int64_t rows[] = {4, 5};
    const Tensors parts = cut_side_by_side(all.clone(), rows);
    CHECK(lie_side_by_side(parts));
    CHECK(doubles(as_one(parts)) == doubles(all));
    CHECK(doubles(parts[1]) == doubles(all.slice(0, 4, 9)));
    // Adjacent by chance: the allocator may cut two tensors from one segment.
    CHECK_FALSE(lie_side_by_side({empty({128, 4}), empty({128, 4}), empty({128, 4})}));
}

namespace {

// A model whose attention uses one merged projection.
nn::BertConfig small() {
    return {.vocab_size = 11,
            .hidden_size = 8,
            .num_hidden_layers = 2,
            .num_attention_heads = 2,
            .intermediate_size = 12,
            .hidden_dropout_prob = 0,
            .attention_probs_dropout_prob = 0,
            .max_position_embeddings = 8};
}

Tensors weights_of(const nn::BertSelfAttention& a) { return {a.query.weight, a.key.weight, a.value.weight}; }
Tensors biases_of(const nn::BertSelfAttention& a) { return {a.query.bias, a.key.bias, a.value.bias}; }

Tensors copies_of(const Tensors& params) {
    Tensors copies;
    for (const Tensor& p : params) copies.push_back(p->grads().copy16.value);
    return copies;
}

bool all_placed(const nn::Bert& net) {
    bool placed = true;
    for (const nn::BertLayer& layer : net.encoder.layer)
        placed = placed && lie_side_by_side(weights_of(layer.attention.self)) &&
                 lie_side_by_side(biases_of(layer.attention.self));
    return placed;
}

bool copies_placed(const nn::Bert& net) {
    bool placed = true;
    for (const nn::BertLayer& layer : net.encoder.layer)
        placed = placed && lie_side_by_side(copies_of(weights_of(layer.attention.self))) &&
                 lie_side_by_side(copies_of(biases_of(layer.attention.self)));
    return placed;
}

void train_step(const nn::Bert& net, optim::Optimizer& optimizer, amp::GradScaler* scaler = nullptr) {
    Tensor loss;
    {
        const amp::Autocast scope({.dtype = float16});
        loss = mean(square(net(Tensor::from<std::int64_t>({3, 5, 10, 1}, {1, 4})).last_hidden_state));
    }
    if (scaler != nullptr) {
        scaler->scale(loss).backward();
        scaler->step(optimizer);
        scaler->update();
    } else {
        loss.backward();
        optimizer.step();
    }
    optimizer.zero_grad();
}

}  // namespace

TEST_CASE("merged_linear: BERT's projections stay side by side, and so do their 16-bit copies",
          "[bert][optim]") {
    for (const bool scaled : {false, true}) {
        CAPTURE(scaled);
        nn::Bert net(small(), {.pooler = false});
        REQUIRE(all_placed(net));
        optim::AdamW optimizer(net.named_parameters(), {.lr = 0.01});
        amp::GradScaler scaler({.init_scale = 8});
        const auto step = [&] { train_step(net, optimizer, scaled ? &scaler : nullptr); };
        StateDict start;
        for (const auto& [name, value] : net.state_dict()) start.emplace_back(name, value.clone());
        step();
        CHECK(copies_placed(net));
        const std::uint64_t casts = autocast_counters().casts;
        step();
        const std::uint64_t steady = autocast_counters().casts - casts;
        // A stale 16-bit copy of a parameter is updated without moving it.
        net.load_state_dict(start);
        step();
        CHECK(all_placed(net));
        CHECK(copies_placed(net));
        const std::uint64_t before = autocast_counters().casts;
        step();
        CHECK(autocast_counters().casts - before == steady);
    }
}

TEST_CASE(
    "merged_linear: 16-bit copies come together again after a graph has held them, or a weight was frozen",
    "[bert][optim]") {
    nn::Bert net(small(), {.pooler = false});
    const Tensor key = net.encoder.layer[0].attention.self.key.weight;
    key.set_requires_grad(false);
    optim::AdamW optimizer(net.named_parameters(), {.lr = 0.01});
    train_step(net, optimizer, nullptr);
    key.set_requires_grad(true);
    for (int i = 0; i < 3; ++i) train_step(net, optimizer, nullptr);
    CHECK(copies_placed(net));
    {
        const amp::Autocast scope({.dtype = bfloat16});
        const Tensor held = net(zeros({1, 2}, {.dtype = int64})).last_hidden_state;
        train_step(net, optimizer, nullptr);
    }
    train_step(net, optimizer, nullptr);
    CHECK(copies_placed(net));
}

TEST_CASE("merged_linear: BERT's projections stay side by side when a model is converted", "[bert][amp]") {
    nn::Bert net(small());
    net.to(float64);
    CHECK(all_placed(net));
    net.to(float32);
    CHECK(all_placed(net));
    const void* const place = raw(net.encoder.layer[0].attention.self.query.weight);
    net.to(float32);  // nothing to do
    CHECK(raw(net.encoder.layer[0].attention.self.query.weight) == place);
    for (const Device device : test::devices()) {
        net.to(device);
        CHECK(all_placed(net));
    }
    net.to(cpu_device);
    optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
    amp::initialize(net, {&optimizer}, {.opt_level = "O2"});
    CHECK(net.encoder.layer[1].attention.self.key.weight.dtype() == float16);
    CHECK(all_placed(net));
}

TEST_CASE("merged_linear: BERT trains with a weight that was replaced, frozen, or without a bias", "[bert]") {
    const auto loss_of = [](const nn::Bert& net) {
        return mean(square(net(Tensor::from<std::int64_t>({3, 5, 10, 1}, {1, 4})).last_hidden_state));
    };
    manual_seed(4);
    const nn::Bert net(small(), {.pooler = false});
    const double expected = loss_of(net).item<double>();
    manual_seed(4);
    nn::Bert other(small(), {.pooler = false});
    nn::BertSelfAttention& self = other.encoder.layer[0].attention.self;
    self.key.weight = nn::Parameter(self.key.weight.clone());
    self.value.bias = nn::Parameter();
    self.query.weight.set_requires_grad(false);
    CHECK(loss_of(other).item<double>() == Approx(expected));  // biases start as 0
    loss_of(net).backward();
    loss_of(other).backward();
    CHECK_FALSE(self.query.weight.grad().defined());
    const nn::BertSelfAttention& like = net.encoder.layer[0].attention.self;
    for (const auto& [mine, theirs] :
         {std::pair(self.key.weight, like.key.weight), std::pair(self.value.weight, like.value.weight),
          std::pair(self.query.bias, like.query.bias), std::pair(self.key.bias, like.key.bias)})
        CHECK(test::difference(doubles(mine.grad()), doubles(theirs.grad()), {1e-4, 1e-7}) == "");
}
