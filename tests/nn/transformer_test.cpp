// Multi-head attention and the Transformer encoder: names, PyTorch's values, masks, derivatives, modes.
#include "mezzo/transformer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/amp.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/models/bert.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/pytorch.h"
#include "tests/support/grad_check.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::assign_parameters;
using test::doubles;
using test::names_of;
using test::with_parameters;

namespace {

// The formula waves() of tools/reference.py.
Tensor waves(const Shape& shape, double phase, double scale) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(scale * std::sin(1.3 * double(i) + phase));
    return test::tensor_of(values, shape, float32);
}

void fill_with_waves(const nn::Module& net) {
    NoGrad plain;
    double j = 0;
    for (const Tensor& p : net.parameters()) p.copy_(waves(p.shape(), j++, 0.7).to(p.device()));
}

template <std::size_t rows, std::size_t columns>
std::vector<double> flat(const float (&values)[rows][columns]) {
    return {&values[0][0], &values[0][0] + rows * columns};
}

// Arithmetic and tolerances of a comparison. Precision 0: float32; 1, 2: autocast.
struct Precision {
    const char* name;
    bool mixed;
    Dtype dtype;
    test::Tolerance allowed;
};
const Precision precisions[] = {{"float32", false, float16, {2e-5, 4e-6}},
                                {"float16", true, float16, {4e-3, 8e-3}},
                                {"bfloat16", true, bfloat16, {3e-2, 6e-2}}};

amp::AutocastOptions options_of(const Precision& p, Device device) {
    return {.device = device.type(), .dtype = p.dtype, .enabled = p.mixed};
}

template <class Net, class Call, class Output, class Gradients>
void follows_pytorch(Net& net, const Call& call, const Output& output, const Output& input_gradient,
                     const Gradients& gradients) {
    for (const Device device : test::devices()) {
        net.to(device);
        fill_with_waves(net);
        for (const Precision& p : precisions) {
            INFO(net.type_name() << " in " << p.name);
            net.zero_grad();
            const Tensor x = waves({2, 3, 4}, 0.5, 1).to(device).detach().set_requires_grad();
            Tensor y;
            {
                const amp::Autocast scope(options_of(p, device));
                y = call(net, x);
            }
            y.backward({.gradient = waves(y.shape(), 0.25, 1).to(device).to(y.dtype())});
            CHECK(test::difference(doubles(y), flat(output), p.allowed) == "");
            CHECK(test::difference(doubles(x.grad()), flat(input_gradient), p.allowed) == "");
            std::vector<double> all;
            for (const Tensor& parameter : net.parameters()) {
                CHECK(parameter.grad().dtype() == float32);
                for (const double g : doubles(parameter.grad())) all.push_back(g);
            }
            CHECK(test::difference(all, flat(gradients), p.allowed) == "");
        }
        net.to(cpu_device);
    }
}

Tensor flags(const std::vector<std::uint8_t>& values, const Shape& shape) {
    return test::tensor_of({values.begin(), values.end()}, shape, boolean);
}

Tensor normal(const Shape& shape, std::uint64_t seed) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, float32);
}

}  // namespace

TEST_CASE("transformer: names, shapes and initial values are PyTorch's", "[transformer]") {
    manual_seed(3);
    const nn::TransformerEncoder net(8, 2,
                                     {.num_layers = 2, .layer = {.dim_feedforward = 12}, .final_norm = true});
    std::vector<std::string> expected;
    for (const char* layer : {"layers.0.", "layers.1."})
        for (const char* name :
             {"self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
              "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias",
              "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"})
            expected.push_back(std::string(layer) + name);
    expected.insert(expected.end(), {"norm.weight", "norm.bias"});
    CHECK(names_of(net.state_dict()) == expected);
    CHECK(net.num_parameters() == 2 * (24 * 8 + 24 + 8 * 8 + 8 + 2 * 8 * 12 + 12 + 8 + 4 * 8) + 16);
    const nn::MultiheadAttention& attention = net.layers[0].self_attn;
    CHECK(attention.in_proj_weight.shape() == Shape{24, 8});
    const std::vector<double> weights = doubles(attention.in_proj_weight);
    const double largest = *std::max_element(weights.begin(), weights.end()), bound = std::sqrt(6.0 / 32);
    CHECK(largest <= bound);
    CHECK(largest > 0.9 * bound);
    CHECK(doubles(attention.in_proj_bias) == std::vector<double>(24, 0));
    CHECK(doubles(attention.out_proj.bias) == std::vector<double>(8, 0));
    CHECK(doubles(net.layers[0].self_attn.in_proj_weight) != doubles(net.layers[1].self_attn.in_proj_weight));
    CHECK_THAT(net.to_string(), Contains("(self_attn): MultiheadAttention(embed_dim=8, num_heads=2, "
                                         "dropout=0.1, bias=true"));
    CHECK(names_of(nn::MultiheadAttention(4, 1, {.bias = false}).state_dict()) ==
          std::vector<std::string>{"in_proj_weight", "out_proj.weight"});
    CHECK(nn::TransformerEncoder(4, 1, {.num_layers = 1}).parameters().size() == 12);
}

TEST_CASE("transformer: values and gradients follow PyTorch", "[transformer]") {
    const Tensor padding = flags({0, 0, 0, 0, 0, 1}, {2, 3});
    nn::TransformerEncoderLayer layer(
        4, 2, {.dim_feedforward = 6, .dropout = 0, .activation = LinearActivation::gelu});
    follows_pytorch(
        layer, [&](auto& net, const Tensor& x) { return net(x, {.key_mask = !padding.to(x.device())}); },
        reference::encoder_layer_output, reference::encoder_layer_input_gradient,
        reference::encoder_layer_gradients);
    nn::TransformerEncoderLayer first(4, 2, {.dim_feedforward = 6, .dropout = 0, .norm_first = true});
    follows_pytorch(
        first, [](auto& net, const Tensor& x) { return net(x, {.causal = true}); },
        reference::encoder_layer_norm_first_output, reference::encoder_layer_norm_first_input_gradient,
        reference::encoder_layer_norm_first_gradients);
    nn::MultiheadAttention attention(4, 2);
    const Tensor memory = waves({2, 2, 4}, 1.5, 1), added = waves({3, 2}, 2.5, 1);
    const Tensor flipped = cat({memory.slice(1, 1, 2), memory.slice(1, 0, 1)}, 1);
    follows_pytorch(
        attention,
        [&](auto& net, const Tensor& x) {
            return net(x, memory.to(x.device()), flipped.to(x.device()), {.mask = added.to(x.device())});
        },
        reference::cross_attention_output, reference::cross_attention_input_gradient,
        reference::cross_attention_gradients);
}

TEST_CASE("transformer: shared inputs give what separate ones give", "[transformer]") {
    manual_seed(5);
    const nn::MultiheadAttention attention(6, 3);
    const Tensor x = normal({2, 4, 6}, 1), m = normal({2, 5, 6}, 2);
    const auto same = [](const Tensor& a, const Tensor& b) { return all_close(a, b, 1e-5, 1e-6); };
    CHECK(same(attention(x, x, x), attention(x, x.clone(), x.clone())));
    CHECK(same(attention(x, m, m), attention(x, m, m.clone())));
    CHECK_FALSE(same(attention(x, x, x), attention(x, x.clone(), x * 1.5)));
}

TEST_CASE("transformer: masks", "[transformer]") {
    manual_seed(7);
    const nn::MultiheadAttention attention(4, 2);
    const Tensor x = normal({2, 3, 4}, 3);
    const auto out = [&](const nn::AttentionMasks& masks) { return doubles(attention(x, x, x, masks)); };
    const auto close = [](const std::vector<double>& a, const std::vector<double>& b) {
        return test::difference(a, b, {1e-5, 1e-6}) == "";
    };
    const Tensor triangle = flags({0, 1, 1, 0, 0, 1, 0, 0, 0}, {3, 3});
    const Tensor padding = flags({0, 0, 1, 0, 1, 1}, {2, 3});
    CHECK(close(out({.mask = !triangle}), out({.causal = true})));
    CHECK_FALSE(close(out({}), out({.causal = true})));
    const auto added = [](const Tensor& hides) { return masked_fill(zeros(hides.shape()), hides, -1e9); };
    CHECK(close(out({.mask = added(triangle)}), out({.causal = true})));
    // Both masks together, in every form.
    const Tensor both = logical_or(padding.reshape({2, 1, 1, 3}), triangle.reshape({1, 1, 3, 3}));
    const Tensor per_head = cast(both, float32).expand({2, 2, 3, 3}).reshape({4, 3, 3});
    const std::vector<double> expected = out({.mask = per_head == 0});
    CHECK(close(out({.key_mask = !padding, .mask = !triangle}), expected));
    CHECK(close(out({.key_mask = !padding, .causal = true}), expected));
    CHECK(close(out({.key_mask = !padding, .mask = added(triangle)}), expected));
    CHECK(close(out({.key_mask = !padding, .mask = per_head * -1e9}), expected));
    CHECK_FALSE(close(out({.key_mask = !padding}), expected));
}

TEST_CASE("transformer: padding changes nothing for real tokens", "[transformer]") {
    manual_seed(9);
    nn::TransformerEncoder net(4, 2, {.num_layers = 2, .layer = {.dim_feedforward = 8}, .final_norm = true});
    net.eval();
    const Tensor x = normal({2, 5, 4}, 4);
    const Tensor hide = flags({0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, {2, 5});
    for (const Precision& p : precisions) {
        const amp::Autocast scope(options_of(p, cpu_device));
        const Tensor padded = net(x, {.key_mask = !hide});
        const Tensor alone = net(x.slice(0, 1, 2).slice(1, 0, 3).contiguous());
        CHECK(test::difference(doubles(padded.slice(0, 1, 2).slice(1, 0, 3)), doubles(alone), p.allowed) ==
              "");
    }
}

namespace {

Tensor layer_of(In in, nn::TransformerEncoderLayer& layer, const nn::AttentionMasks& masks) {
    assign_parameters(layer, in.subspan(1));
    return layer(in[0], masks);
}

Tensor norm_last(In in) {
    static nn::TransformerEncoderLayer layer(
        4, 2, {.dim_feedforward = 5, .dropout = 0, .activation = LinearActivation::gelu_tanh});
    return layer_of(in, layer, {.key_mask = flags({1, 1, 1, 0, 1, 1}, {2, 3})});
}

Tensor norm_first(In in) {
    static nn::TransformerEncoderLayer layer(
        4, 2, {.dim_feedforward = 5, .dropout = 0, .activation = LinearActivation::gelu, .norm_first = true});
    return layer_of(in, layer, {.causal = true});
}

Tensor cross(In in) {
    static nn::MultiheadAttention attention(4, 2);
    assign_parameters(attention, in.subspan(2));
    return attention(in[0], in[1], in[1]);
}

}  // namespace

TEST_CASE("transformer: first and second derivatives", "[transformer]") {
    const nn::TransformerEncoderLayer layer(4, 2, {.dim_feedforward = 5});
    const nn::MultiheadAttention attention(4, 2);
    const Tensor x = normal({2, 3, 4}, 11).to(float64), m = normal({2, 2, 4}, 12).to(float64);
    for (test::Function* f : {norm_last, norm_first}) {
        CHECK(test::check_gradient(f, with_parameters({x}, layer)) == "");
        CHECK(test::check_second_gradient(f, with_parameters({x}, layer)) == "");
    }
    CHECK(test::check_gradient(cross, with_parameters({x, m}, attention)) == "");
    CHECK(test::check_second_gradient(cross, with_parameters({x, m}, attention)) == "");
}

TEST_CASE("transformer: dropout only while training", "[transformer]") {
    for (const bool norm_first : {false, true}) {
        manual_seed(13);
        const nn::TransformerEncoderLayerOptions plain{.dropout = 0, .norm_first = norm_first},
            noisy{.dropout = 0.5, .norm_first = norm_first};
        nn::TransformerEncoderLayer a(4, 2, plain), b(4, 2, noisy);
        b.load_state_dict(a.state_dict());
        const Tensor x = normal({2, 6, 4}, 5);
        manual_seed(1);
        const Tensor first = b(x), second = b(x);
        manual_seed(1);
        CHECK(doubles(b(x)) == doubles(first));
        CHECK(doubles(first) != doubles(second));
        b.eval();
        CHECK(doubles(b(x)) == doubles(a(x)));
    }
    // Dropout of the attention weights alone.
    nn::MultiheadAttention attention(4, 2, {.dropout = 0.5});
    const Tensor x = normal({1, 6, 4}, 6);
    CHECK(doubles(attention(x, x, x)) != doubles(attention(x, x, x)));
    attention.eval();
    CHECK(doubles(attention(x, x, x)) == doubles(attention(x, x, x)));
}

TEST_CASE("transformer: checkpointed layers give the same gradients", "[transformer]") {
    manual_seed(15);
    nn::TransformerEncoder net(
        4, 2, {.num_layers = 2, .layer = {.dim_feedforward = 8, .dropout = 0.3}, .final_norm = true});
    const Tensor x = normal({2, 3, 4}, 7);
    for (const Precision& p : precisions) {
        std::vector<double> gradients[2];
        for (const bool again : {false, true}) {
            net.checkpoint_layers = again;
            net.zero_grad();
            manual_seed(2);
            Tensor loss;
            {
                const amp::Autocast scope(options_of(p, cpu_device));
                loss = sum(square(net(x)) * waves({2, 3, 4}, 0, 1));
            }
            loss.backward();
            for (const Tensor& parameter : net.parameters())
                for (const double g : doubles(parameter.grad())) gradients[again].push_back(g);
        }
        CHECK(gradients[0] == gradients[1]);
    }
}

TEST_CASE("transformer: errors", "[transformer]") {
    CHECK_THROWS_WITH(nn::MultiheadAttention(6, 4), Contains("embed_dim is 6, num_heads 4"));
    CHECK_THROWS_WITH(nn::MultiheadAttention(6, 0), Contains("positive multiple"));
    CHECK_THROWS_WITH(nn::MultiheadAttention(6, 2, {.dropout = 1}), Contains("dropout is 1"));
    CHECK_THROWS_WITH(nn::TransformerEncoder(4, 2, {.num_layers = -1}), Contains("num_layers is -1"));
    const nn::MultiheadAttention attention(4, 2);
    const Tensor x = zeros({2, 3, 4}), m = zeros({2, 5, 4});
    CHECK_THROWS_WITH(attention(zeros({2, 3, 5}), x, x), Contains("[batch, length, 4]"));
    CHECK_THROWS_WITH(attention(Tensor(), x, x), Contains("[batch, length, 4]"));
    CHECK_THROWS_WITH(attention(x, m, x), Contains("do not fit"));
    CHECK_THROWS_WITH(attention(x, m, m, {.key_mask = zeros({2, 5})}), Contains("must be boolean"));
    CHECK_THROWS_WITH(attention(x, m, m, {.key_mask = zeros({2, 3}, {.dtype = boolean})}),
                      Contains("is not [2, 5]"));
    CHECK_THROWS_WITH(attention(x, m, m, {.mask = zeros({5, 3})}), Contains("[4, 3, 5]"));
    CHECK_NOTHROW(attention(x, m, m, {.mask = zeros({3, 5})}));
}

TEST_CASE("packed_attention, MultiheadAttention and Bert do not read hidden keys", "[attention]") {
    const FastPath before = flash_attention();
    set_flash_attention(true);
    const auto random = [](const Shape& shape, std::uint64_t seed, Dtype dtype = float32) {
        return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype);
    };
    const std::int64_t n = 12, dim = 64;
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, float16})
            for (const bool left : {false, true})
                for (const double bad : {double(NAN), -double(INFINITY), 6e4}) {
                    CAPTURE(device, dtype, left, bad);
                    const std::int64_t first = left ? 0 : n - 4, visible = left ? 4 : 0, count = n - 4;
                    std::vector<double> look(std::size_t(n), 1.0);
                    for (std::int64_t j = first; j < first + 4; ++j) look[std::size_t(j)] = 0;
                    const Tensor mask = gt(Tensor::from(look, {1, n}), 0.0).to(device);
                    nn::MultiheadAttention heads(dim, 2);
                    nn::Bert bert({.vocab_size = 9,
                                   .hidden_size = dim,
                                   .num_hidden_layers = 2,
                                   .num_attention_heads = 2,
                                   .intermediate_size = 32,
                                   .max_position_embeddings = n});
                    heads.to(device), bert.to(device);
                    heads.eval(), bert.eval();
                    std::vector<double> ids(std::size_t(n), 3.0);
                    for (std::int64_t j = first; j < first + 4; ++j) ids[std::size_t(j)] = 8;
                    const Tensor tokens = Tensor::from(ids, {1, n}).to(int64).to(device);
                    Tensor results[2][5];
                    for (const int with : {0, 1}) {
                        const NoGrad plain;
                        const Tensor qkv = random({1, n, 3, 2, 32}, 1, dtype).to(device),
                                     x = random({1, n, dim}, 2).to(device),
                                     query = random({1, n, dim}, 3).to(device);
                        if (with == 1) {
                            qkv.slice(1, first, first + 4).fill_(bad);
                            x.slice(1, first, first + 4).fill_(bad);
                            bert.embeddings.word_embeddings.weight.slice(0, 8, 9).fill_(bad);
                        }
                        const EnableGrad recorded;
                        qkv.set_requires_grad(), query.set_requires_grad();
                        const auto seen = [&](const Tensor& t) {
                            return t.slice(1, visible, visible + count);
                        };
                        const Tensor packed =
                            seen(packed_attention(qkv, {.mask = mask.reshape({1, 1, 1, n})}));
                        sum(square(packed.to(float32))).backward();
                        const amp::Autocast scope({.dtype = float16, .enabled = dtype == float16});
                        const Tensor attended = heads(query, x, x, {.key_mask = mask});
                        sum(square(attended.to(float32))).backward();
                        const NoGrad again;
                        const Tensor encoded = bert(tokens, {.attention_mask = mask}).last_hidden_state;
                        const Tensor all[] = {packed,
                                              qkv.grad().slice(1, visible, visible + count).select(2, 0),
                                              attended, query.grad(), seen(encoded)};
                        for (int i = 0; i < 5; ++i) results[with][i] = all[i].detach();
                    }
                    const test::Tolerance close =
                        dtype == float16 ? test::Tolerance{2e-2, 2e-2} : test::Tolerance{1e-5, 1e-5};
                    for (int i = 0; i < 5; ++i) {
                        CAPTURE(i);
                        CHECK(test::difference(doubles(results[1][i]), doubles(results[0][i]), close) == "");
                    }
                }
    set_flash_attention(before);
}
