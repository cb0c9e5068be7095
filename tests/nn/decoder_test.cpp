// The Transformer decoder, nn::Transformer, and the further forms of MultiheadAttention: PyTorch's values and
// names, derivatives, modes, errors.
#include "mezzo/transformer.h"

#include "tests/nn/layer_helpers.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/layers.h"
#include "tests/support/grad_check.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::check_summary;
using test::doubles;
using test::filled;
using test::leaf;
using test::names_of;
using Names = std::vector<std::string>;

namespace {

Tensor flags(const std::vector<double>& values, const Shape& shape) {
    return test::tensor_of(values, shape, boolean);
}
Tensor real_keys() { return flags({1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, {2, 5}); }

}  // namespace

TEST_CASE("decoder: values and gradients follow PyTorch", "[decoder]") {
    const Tensor x = leaf({2, 3, 4}, 0.5), m = leaf({2, 5, 4}, 1.5);
    const auto fresh = [&] {
        x.set_grad({});
        m.set_grad({});
    };
    const nn::TransformerDecoderLayerOptions plain{.dim_feedforward = 6, .dropout = 0};
    auto layer = filled(nn::TransformerDecoderLayer(4, 2, plain));
    const nn::DecoderMasks masks{.tgt = {.causal = true}, .memory = {.key_mask = real_keys()}};
    check_summary(reference::decoder_layer, layer, {x, m}, {layer(x, m, masks)});
    fresh();
    auto first = filled(nn::TransformerDecoderLayer(
        4, 2,
        {.dim_feedforward = 6, .dropout = 0, .activation = LinearActivation::gelu, .norm_first = true}));
    check_summary(reference::decoder_layer_norm_first, first, {x, m}, {first(x, m)});
    fresh();
    auto net =
        filled(nn::Transformer(4, 2, {.num_encoder_layers = 1, .num_decoder_layers = 2, .layer = plain}));
    const auto call = [&] {
        return net(
            m, x,
            {.src = {.key_mask = real_keys()}, .tgt = {.causal = true}, .memory = {.key_mask = real_keys()}});
    };
    // The leaves of the reference are in the order of the call: source, target.
    const Tensor y = call();
    check_summary(reference::transformer, net, {m, x}, {y});
    net.encoder.checkpoint_layers = net.decoder.checkpoint_layers = true;
    CHECK(doubles(call()) == doubles(y));
    // Hooks on every part change no value.
    for (const auto& [path, module] : net.named_modules())
        module->register_forward_pre_hook([](const nn::Module&, Tensors&) {});
    CHECK(test::difference(doubles(call()), doubles(y), {1e-12, 1e-12}) == "");
}

TEST_CASE("decoder: names, initial values, dropout, sizes", "[decoder]") {
    const nn::Transformer net(8, 2, {.num_encoder_layers = 1, .num_decoder_layers = 1});
    const Names names = names_of(net.state_dict());
    CHECK(names.size() == 12 + 2 + 18 + 2);
    for (const char* name :
         {"encoder.layers.0.linear1.weight", "encoder.norm.bias", "decoder.layers.0.self_attn.in_proj_weight",
          "decoder.layers.0.multihead_attn.out_proj.bias", "decoder.layers.0.norm3.weight",
          "decoder.norm.weight"})
        CHECK(std::count(names.begin(), names.end(), name) == 1);
    const std::vector<double> values = doubles(net.decoder.layers[0].linear1.weight);
    CHECK(*std::max_element(values.begin(), values.end()) <= std::sqrt(6.0 / (8 + 2048)));
    nn::TransformerDecoder noisy(4, 2, {.num_layers = 1, .layer = {.dim_feedforward = 6, .dropout = 0.5}});
    const Tensor x = ones({1, 3, 4}), m = ones({1, 2, 4});
    CHECK(doubles(noisy(x, m)) != doubles(noisy(x, m)));
    noisy.eval();
    CHECK(doubles(noisy(x, m)) == doubles(noisy(x, m)));
    CHECK(noisy(zeros({0, 3, 4}), zeros({0, 2, 4})).shape() == Shape{0, 3, 4});
    CHECK_THROWS_WITH(nn::TransformerDecoder(4, 2, {.num_layers = -1}), Contains("num_layers is -1"));
    CHECK_THROWS_WITH(noisy(x, zeros({1, 2, 5})), Contains("key must be [batch, length, 4]"));
}

TEST_CASE("decoder: devices and autocast", "[decoder]") {
    manual_seed(2);
    nn::Transformer net(
        8, 2,
        {.num_encoder_layers = 1, .num_decoder_layers = 1, .layer = {.dim_feedforward = 12, .dropout = 0}});
    const Tensor source = test::waves({2, 5, 8}, 0.1).to(float32),
                 target = test::waves({2, 3, 8}, 1).to(float32);
    const nn::TransformerMasks masks{
        .src = {.key_mask = real_keys()}, .tgt = {.causal = true}, .memory = {.key_mask = real_keys()}};
    const std::vector<double> expected = doubles(net(source, target, masks));
    for (const Device device : test::devices()) {
        net.to(device);
        nn::TransformerMasks there = masks;
        there.src.key_mask = there.memory.key_mask = real_keys().to(device);
        for (const Dtype dtype : {float32, float16, bfloat16}) {
            CAPTURE(device, dtype);
            const amp::Autocast scope({.dtype = dtype});
            const Tensor y = net(source.to(device), target.to(device), there);
            const double allowed = dtype == float32 ? 1e-5 : dtype == float16 ? 1e-2 : 8e-2;
            CHECK(test::difference(doubles(y), expected, {allowed, allowed}) == "");
            sum(square(y)).backward();
        }
        for (const Tensor& p : net.parameters()) CHECK(p.grad().defined());
    }
}

TEST_CASE("attention: kdim, vdim, appended keys and weights follow PyTorch", "[decoder]") {
    const Tensor q = leaf({2, 3, 4}, 0.5), k = leaf({2, 5, 6}, 1.5), v = leaf({2, 5, 3}, 2.5);
    auto wide = filled(nn::MultiheadAttention(4, 2, {.kdim = 6, .vdim = 3}));
    const nn::AttentionResult mean = wide.attend(q, k, v);
    check_summary(reference::attention_kdim, wide, {q, k, v}, {mean.output, mean.weights});
    CHECK(test::difference(doubles(wide(q, k, v)), doubles(mean.output), {1e-12, 1e-12}) == "");
    CHECK(names_of(wide.state_dict())[1] == "k_proj_weight");
    q.set_grad({});
    const Tensor k4 = leaf({2, 5, 4}, 0.5), v4 = leaf({2, 5, 4}, 1.5);
    auto more = filled(nn::MultiheadAttention(4, 2, {.add_bias_kv = true, .add_zero_attn = true}));
    const nn::AttentionMasks masks{.key_mask = real_keys(), .mask = tril(ones({3, 5}), 2) > 0};
    const nn::AttentionResult heads = more.attend(q, k4, v4, masks, false);
    check_summary(reference::attention_more, more, {q, k4, v4}, {heads.output, heads.weights});
    const auto same = [&](const nn::AttentionMasks& m) {
        return test::difference(doubles(more(q, k4, v4, m)), doubles(more.attend(q, k4, v4, m).output),
                                {1e-12, 1e-12}) == "";
    };
    CHECK(same(masks));
    CHECK(same({}));
    CHECK(same({.causal = true}));
    CHECK(same({.key_mask = real_keys(), .mask = test::waves({3, 5}, 1), .causal = true}));
    CHECK(test::difference(doubles(more(q, k4, v4, {.causal = true})), doubles(more(q, k4, v4, masks)),
                           {1e-12, 1e-12}) != "");
    CHECK(test::difference(doubles(more(q, k4, v4, {.key_mask = real_keys(), .causal = true})),
                           doubles(more(q, k4, v4, masks)), {1e-12, 1e-12}) == "");
    // A query that attends to no key has weights and gradients of 0.
    const auto plain = filled(nn::MultiheadAttention(4, 2));
    const Tensor none = flags(std::vector<double>(15, 0), {3, 5});
    q.set_grad({});
    const nn::AttentionResult blind = plain.attend(q, k4, v4, {.mask = none});
    CHECK(doubles(blind.weights) == std::vector<double>(30, 0));
    sum(blind.output).backward();
    CHECK(doubles(q.grad()) == std::vector<double>(24, 0));
    CHECK_THROWS_WITH(wide(q, k4, v), Contains("key must be [batch, length, 6]"));
    CHECK_THROWS_WITH(nn::MultiheadAttention(4, 2, {.kdim = -1}), Contains("kdim is -1"));
}
