// 8-bit weights of modules: codes, products, memory, states and files, and what they refuse.
#include "mezzo/quantize.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/generate.h"
#include "tests/models/causal_models.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

constexpr nn::QuantizeWeightsOptions e4m3{.dtype = float8_e4m3fn};

// The same weights as numbers: what the 8-bit module computes with.
nn::Linear with_numbers_of(const nn::Linear& layer) {
    nn::Linear plain(layer.weight.size(1), layer.weight.size(0), {.bias = layer.bias.defined()});
    const NoGrad no_grad;
    plain.weight.copy_(dequantize_weight(layer.weight));
    if (layer.bias.defined()) plain.bias.copy_(layer.bias);
    return plain;
}

// Distance of y from x W^T + b in float64, in units of float32's sums: 2^-24 of the sum of magnitudes; in 16
// bit the rounding of y is subtracted.
double distance(const nn::Linear& layer, const Tensor& x, const Tensor& y) {
    const Tensor w = dequantize_weight(layer.weight, float64), wide = x.to(float64);
    Tensor exact = matmul(wide, w.t()), magnitude = matmul(abs(wide), abs(w).t());
    if (layer.bias.defined()) {
        exact = exact + layer.bias.to(float64);
        magnitude = magnitude + abs(layer.bias.to(float64));
    }
    Tensor error = abs(y.to(float64) - exact);
    if (y.dtype() != float32) error = error - abs(exact) * dtype_info(y.dtype()).epsilon;
    return max(error / magnitude).item<double>() * 0x1p24;
}

double relative_error(const Tensor& a, const Tensor& b) {
    const Tensor wide = b.to(float64);
    return std::sqrt((sum(square(a.to(float64) - wide)) / sum(square(wide))).item<double>());
}

bool tied(const nn::CausalLm& model) {
    const auto* const llama = dynamic_cast<const nn::Llama*>(&model);
    return llama == nullptr || llama->config.tie_word_embeddings;
}

bool same(const Tensor& a, const Tensor& b) { return doubles(a) == doubles(b); }

}  // namespace

TEST_CASE("quantize_weights: codes and scales", "[quantize]") {
    for (const Device device : devices()) {
        nn::Linear layer(64, 2, {.bias = false});
        layer.to(device);
        {
            const NoGrad plain;
            layer.weight.zero_();
            layer.weight[0].slice(0, 0, 3).copy_(Tensor::from({127.0f, -63.5f, 0.3f}).to(device));
            layer.weight[0].slice(0, 32, 34).copy_(Tensor::from({-254.0f, 3.0f}).to(device));
        }
        const Tensor handle = layer.weight;
        nn::quantize_weights(layer);
        CHECK(handle.dtype() == int8);
        CHECK(handle.shape() == Shape{2, 64});
        CHECK_FALSE(handle.requires_grad());
        const Tensor scale = weight_scale(handle);
        CHECK(scale.dtype() == bfloat16);
        CHECK(doubles(scale) == std::vector<double>{1, 2, 1, 1});  // 1 for groups of zeros
        std::vector<double> row = doubles(handle[0]);
        CHECK(std::vector<double>(row.begin(), row.begin() + 3) == std::vector<double>{127, -64, 0});
        CHECK(row[32] == -127);
        CHECK(row[33] == 2);  // 1.5 to even
        CHECK(doubles(dequantize_weight(handle)[0])[32] == -254);
        CHECK(layer.to_string() == "Linear(in_features=64, out_features=2, bias=false, weight=int8)");

        nn::Linear other(40, 3);  // no multiple of the group: a scale for each row
        other.to(device);
        nn::quantize_weights(other);
        CHECK(weight_scale(other.weight).shape() == Shape{3, 1});
        nn::Linear wide(256, 3);
        nn::quantize_weights(wide, {.group = 128});
        CHECK(weight_scale(wide.weight).shape() == Shape{3, 2});

        nn::Linear narrow(64, 3);
        narrow.to(device);
        const Tensor largest = max(abs(narrow.weight.detach()), -1, {.keepdim = true});
        nn::quantize_weights(narrow, e4m3);
        CHECK(narrow.weight.dtype() == float8_e4m3fn);
        CHECK(weight_scale(narrow.weight).dtype() == float32);
        CHECK(same(weight_scale(narrow.weight), largest / 448.0));
        CHECK(doubles(max(abs(narrow.weight.to(float32)))) == std::vector<double>{448});
        narrow.to(bfloat16);
        CHECK(weight_scale(narrow.weight).dtype() == float32);
    }
}

TEST_CASE("quantize_weights: products are those of the codes' numbers", "[quantize]") {
    struct Size {
        std::int64_t in, out;
    };
    for (const Device device : devices())
        for (const nn::QuantizeWeightsOptions options : {nn::QuantizeWeightsOptions{}, {.group = 64}, e4m3})
            for (const Size size : {Size{64, 70}, Size{40, 5}, Size{768, 33}, Size{5120, 40}, Size{7, 1}}) {
                nn::Linear layer(size.in, size.out);
                layer.to(device);
                nn::quantize_weights(layer, options);
                for (const Dtype dtype : {float32, bfloat16, float16})
                    for (const std::int64_t rows : {1, 2, 3, 8, 9, 20}) {
                        const Tensor x = tensor_of(random_values(rows * size.in, 3, Domain::any),
                                                   {rows, size.in}, dtype, device);
                        const NoGrad plain;
                        const Tensor y = linear(x, layer.weight, layer.bias.to(dtype));
                        CHECK(y.dtype() == dtype);
                        nn::Linear rounded(layer);
                        rounded.bias = nn::Parameter(layer.bias.to(dtype));
                        INFO(name(device.type()) << ' ' << name(options.dtype) << ' ' << name(dtype) << ' '
                                                 << rows << " x " << size.in << " x " << size.out);
                        const bool codes = dtype == float32 || (rows <= 8 && device == cpu_device);
                        if (codes)
                            CHECK(distance(rounded, x, y) <= (rows <= 8 && device == cpu_device ? 2 : 4));
                        else  // the weight is rounded to 16 bit
                            CHECK(
                                relative_error(y, matmul(x.to(float32), dequantize_weight(layer.weight).t()) +
                                                      rounded.bias.to(float32)) < dtype_info(dtype).epsilon);
                    }
            }
}

TEST_CASE("quantize_weights: bits do not depend on threads or on other rows", "[quantize][threads]") {
    nn::Linear layer(768, 1000);
    nn::quantize_weights(layer);
    const NoGrad plain;
    const Tensor x = randn({7, 768});
    const int threads = num_threads();
    set_num_threads(1);
    const Tensor one = layer(x);
    set_num_threads(3);
    const Tensor three = layer(x);
    set_num_threads(threads);
    CHECK(same(one, three));
    for (std::int64_t i = 0; i < 7; ++i) CHECK(same(layer(x.slice(0, i, i + 1)), one.slice(0, i, i + 1)));
}

TEST_CASE("quantize_weights: activations, autocast and float64", "[quantize]") {
    for (const Device device : devices()) {
        nn::Sequential net(nn::Linear(64, 32), nn::ReLU(), nn::Linear(32, 8), nn::GELU());
        net.to(device);
        const Tensor x = tensor_of(random_values(3 * 64, 5, Domain::any), {3, 64}, float32, device);
        const NoGrad plain;
        const Tensor before = net(x);
        nn::quantize_weights(net);
        CHECK(relative_error(net(x), before) < 0.02);
        CHECK(net(x).dtype() == float32);
        {
            const amp::Autocast scope({.dtype = bfloat16});
            CHECK(net(x).dtype() == bfloat16);
            CHECK(relative_error(net(x), before) < 0.02);
        }
        net.to(float64);
        CHECK(net(x.to(float64)).dtype() == float64);
        CHECK(relative_error(net(x.to(float64)), before) < 0.02);
    }
}

TEST_CASE("quantize_weights: attention, and merged projections", "[quantize]") {
    for (const Device device : devices()) {
        const NoGrad plain;
        nn::MultiheadAttention attention(64, 4);
        attention.to(device);
        attention.eval();
        const Tensor x = tensor_of(random_values(2 * 5 * 64, 1, Domain::any), {2, 5, 64}, float32, device);
        const Tensor memory =
            tensor_of(random_values(2 * 3 * 64, 2, Domain::any), {2, 3, 64}, float32, device);
        const Tensor self = attention(x, x, x), cross = attention(x, memory, memory);
        nn::quantize_weights(attention);
        CHECK(attention.in_proj_weight.dtype() == int8);
        CHECK(attention.out_proj.weight.dtype() == int8);
        CHECK(relative_error(attention(x, x, x), self) < 0.03);
        CHECK(relative_error(attention(x, memory, memory), cross) < 0.03);

        nn::SwiGLU gate(64, 96);
        gate.to(device);
        const Tensor y = gate(x);
        nn::quantize_weights(gate);
        CHECK(relative_error(gate(x), y) < 0.03);
    }
}

TEST_CASE("quantize_weights: language models, whose output may be the embedding", "[quantize][generate]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float32, bfloat16})
            for (const auto& model : filled_models(dtype, device)) {
                const NoGrad plain;
                const Tensor ids = randint(0, 23, {2, 7}, {.dtype = int64, .device = device});
                const Tensor before = model->logits(model->hidden(ids));
                nn::quantize_weights(*model);
                const Tensor after = model->logits(model->hidden(ids));
                INFO(model->type_name() << ' ' << name(dtype));
                CHECK(after.dtype() == dtype);
                CHECK(relative_error(after, before) < 0.05);
                for (const auto& [path, weight] : model->named_parameters()) {
                    const bool matrix = weight.dim() == 2 && path != "transformer.wpe.weight" &&
                                        (path != "model.embed_tokens.weight" || tied(*model));
                    INFO(path);
                    CHECK((weight.dtype() == int8) == matrix);
                }
                const nn::GenerateOptions greedy{.max_new_tokens = 5, .sampling = {.temperature = 0}};
                const auto texts = nn::generate(*model, {{3, 1, 4}}, greedy);
                CHECK(texts[0].size() == 8);
            }
}

TEST_CASE("quantize_weights: BERT's masked language model", "[quantize]") {
    nn::BertForMaskedLM bert({.vocab_size = 50,
                              .hidden_size = 64,
                              .num_hidden_layers = 1,
                              .num_attention_heads = 4,
                              .intermediate_size = 96,
                              .max_position_embeddings = 16});
    bert.eval();
    const NoGrad plain;
    const Tensor ids = randint(0, 50, {2, 6}, {.dtype = int64});
    const Tensor before = bert(ids);
    nn::quantize_weights(bert);
    CHECK(bert.bert.embeddings.word_embeddings.weight.dtype() == int8);
    CHECK(bert.bert.embeddings.position_embeddings.weight.dtype() == float32);
    CHECK(relative_error(bert(ids), before) < 0.03);
}

TEST_CASE("quantize_weights: memory falls", "[quantize]") {
    for (const Device device : devices()) {
        nn::Linear layer(512, 512, {.bias = false});
        layer.to(device);
        const std::size_t before = memory_stats(device).allocated;
        nn::quantize_weights(layer);
        CHECK(before - memory_stats(device).allocated == 512 * 512 * (4 - 1) - 512 * 16 * 2);
        const NoGrad plain;
        const InferenceMode packing;
        const std::size_t quantized = memory_stats(device).allocated;
        for (int i = 0; i < 3; ++i) static_cast<void>(layer(ones({1, 512}, {.device = device})));
        CHECK(memory_stats(device).allocated == quantized);
    }
}

TEST_CASE("quantize_weights: gradients go through, and weights have none", "[quantize]") {
    for (const Device device : devices())
        for (const std::int64_t rows : {2, 12}) {
            nn::Sequential net(nn::Linear(64, 32), nn::GELU());
            net.to(device);
            const auto& layer = net.at<nn::Linear>(0);
            nn::quantize_weights(net);
            nn::Linear plain = with_numbers_of(layer);
            plain.to(device);
            const Tensor x = tensor_of(random_values(rows * 64, 5, Domain::any), {rows, 64}, float32, device);
            const Tensor a = x.clone().set_requires_grad(), b = x.clone().set_requires_grad();
            sum(square(net(a))).backward();
            sum(square(gelu(plain(b)))).backward();
            CHECK(difference(doubles(a.grad()), doubles(b.grad()), tolerance(float32)).empty());
            CHECK(difference(doubles(layer.bias.grad()), doubles(plain.bias.grad()), tolerance(float32))
                      .empty());
            CHECK_THAT(error_message([&] { layer.weight.set_requires_grad(); }, ErrorKind::dtype),
                       Contains("set_requires_grad") && Contains("quantize_weights()"));
            CHECK_THAT(error_message([&] { net.unfreeze(); }, ErrorKind::dtype),
                       Contains("quantize_weights()"));
            CHECK_THAT(error_message([&] { optim::Adam(net.parameters()); }, ErrorKind::dtype),
                       Contains("Adam: parameter 0 is an 8-bit weight"));
            CHECK(net(x).shape() == Shape{rows, 32});
        }
}

TEST_CASE("quantize_weights: no copy of a weight waits for backward", "[quantize]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float64}) {
            nn::Linear layer(512, 512);
            layer.to(device);
            nn::quantize_weights(layer);
            nn::Linear plain = with_numbers_of(layer);
            plain.to(device);
            for (nn::Linear* one : {&layer, &plain}) one->to(dtype);
            const Tensor x = tensor_of(random_values(512, 5, Domain::any), {1, 512}, dtype, device);
            const Tensor a = x.clone().set_requires_grad(), b = x.clone().set_requires_grad();
            sum(square(layer(a))).backward();
            sum(square(plain(b))).backward();
            CHECK(difference(doubles(a.grad()), doubles(b.grad()), tolerance(dtype)).empty());
            const auto bias = [](const nn::Linear& of) { return doubles(of.bias.grad()); };
            CHECK(difference(bias(layer), bias(plain), tolerance(dtype)).empty());
            const std::size_t before = memory_stats(device).allocated;
            const Tensor y = layer(a);
            INFO(name(device.type()) << ' ' << name(dtype));
            CHECK(memory_stats(device).allocated - before < 512 * 512);
        }
}

TEST_CASE("quantize_weights: states and files", "[quantize][io]") {
    const Folder folder;
    const std::string path = folder.file("weights.safetensors");
    for (const auto& options : {nn::QuantizeWeightsOptions{}, e4m3}) {
        nn::Gpt model(tiny_gpt()), other(tiny_gpt());
        nn::quantize_weights(model, options);
        const std::string key = "transformer.h.0.attn.c_attn.weight";
        const StateDict state = model.state_dict();
        CHECK(state[key].shape() == Shape{32, 96});  // the layout of GPT-2's files
        CHECK(state[key + "_scale"].shape() == Shape{1, 96});
        CHECK(!model.named_parameters().contains(key + "_scale"));
        io::save_safetensors(path, state);
        const StateDict saved = io::load_state_dict_file(path);
        CHECK(saved[key].dtype() == options.dtype);

        // Into floats: the numbers. Quantising these gives the same codes again.
        CHECK(io::load_weights(other, saved).unexpected.empty());
        const auto& layer = other.transformer.h[0].attn.c_attn;
        CHECK(same(layer.weight, dequantize_weight(model.transformer.h[0].attn.c_attn.weight)));
        nn::quantize_weights(other, options);
        CHECK(same(layer.weight, model.transformer.h[0].attn.c_attn.weight));

        // Into 8 bit: the codes.
        nn::Gpt third(tiny_gpt()), fourth(tiny_gpt());
        nn::quantize_weights(third, options);
        third.load_state_dict(saved);
        nn::quantize_weights(fourth, options);
        CHECK(io::load_weights(fourth, saved).missing.empty());
        for (std::size_t i = 0; i < state.size(); ++i) {
            INFO(state[i].first);
            CHECK(same(third.state_dict()[i].second, state[i].second));
            CHECK(same(fourth.state_dict()[i].second, state[i].second));
        }
    }
}

TEST_CASE("quantize_weights: floats into 8 bit, and other codes", "[quantize][io]") {
    nn::Gpt plain(tiny_gpt()), ints(tiny_gpt()), floats(tiny_gpt());
    nn::quantize_weights(ints);
    nn::quantize_weights(floats, e4m3);
    ints.load_state_dict(plain.state_dict());
    nn::Gpt expected = nn::clone(plain);
    nn::quantize_weights(expected);
    const StateDict want = expected.state_dict(), got = ints.state_dict();
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same(got[i].second, want[i].second));

    floats.load_state_dict(ints.state_dict());
    const Tensor codes = floats.transformer.h[0].mlp.c_fc.weight;
    CHECK(codes.dtype() == float8_e4m3fn);
    CHECK(relative_error(dequantize_weight(codes), plain.transformer.h[0].mlp.c_fc.weight) < 0.04);
}

TEST_CASE("quantize_weights: clones, devices and dtypes", "[quantize]") {
    for (const Device device : devices()) {
        nn::Gpt model(tiny_gpt());
        model.eval();
        nn::quantize_weights(model);
        nn::Gpt copy = nn::clone(model);
        copy.to(device);
        CHECK(weight_scale(copy.transformer.wte.weight).device() == device);
        const NoGrad plain;
        const Tensor ids = randint(0, 23, {2, 7}, {.dtype = int64});
        const Tensor y = model.logits(model.hidden(ids));
        CHECK(relative_error(copy.logits(copy.hidden(ids.to(device))).to(cpu_device), y) < 1e-5);
        weight_scale(copy.transformer.wte.weight).zero_();
        CHECK(same(model.logits(model.hidden(ids)), y));
        copy = nn::clone(model);
        copy.to(bfloat16);
        CHECK(copy.transformer.wte(ids).dtype() == bfloat16);
        CHECK(nn::clone(copy).transformer.wte(ids).dtype() == bfloat16);
        CHECK(copy.logits(copy.hidden(ids)).dtype() == bfloat16);
        nn::quantize_weights(copy, e4m3);  // they are in 8 bit
        CHECK(copy.transformer.wte.weight.dtype() == int8);
    }
}

TEST_CASE("quantize_weights: errors change nothing", "[quantize]") {
    nn::Sequential net(nn::Linear(64, 8), nn::Linear(8, 2));
    CHECK_THAT(error_message([&] { nn::quantize_weights(net, {.dtype = float8_e5m2}); }, ErrorKind::dtype),
               Contains("quantize_weights: dtype is float8_e5m2; it must be int8 or float8_e4m3fn"));
    CHECK_THAT(error_message([&] { nn::quantize_weights(net, {.group = 48}); }, ErrorKind::value),
               Contains("quantize_weights: group is 48; it must be a positive multiple of 32"));
    for (const auto& [dtype, number] :
         {std::pair{float32, std::numeric_limits<double>::infinity()}, std::pair{float64, 1e300}}) {
        net.to(dtype);
        const NoGrad plain;
        net.at<nn::Linear>(1).weight[1][3].fill_(number);
        CHECK_THAT(error_message([&] { nn::quantize_weights(net); }, ErrorKind::value),
                   Contains("quantize_weights: 1.weight has elements that are not finite in float32"));
        CHECK(net.at<nn::Linear>(0).weight.dtype() == dtype);
    }
    CHECK_THAT(error_message(
                   [&] {
                       (void)dequantize_weight(ones({2, 2}));
                   },
                   ErrorKind::value),
               Contains("dequantize_weight: the tensor is no 8-bit weight"));
    CHECK_FALSE(weight_scale(ones({2})).defined());

    nn::Linear layer(64, 8);
    nn::quantize_weights(layer);
    CHECK_THAT(error_message(
                   [&] {
                       (void)layer(ones({2, 63}));
                   },
                   ErrorKind::shape),
               Contains("linear: input [2, 63] does not fit weight [8, 64]"));
    CHECK_THAT(error_message([&] { (void)(layer.weight + 1.0); }, ErrorKind::dtype), Contains("int8"));
    CHECK_THAT(error_message(
                   [&] {
                       (void)layer(ones({2, 64}, {.dtype = int64}));
                   },
                   ErrorKind::dtype),
               Contains("linear"));
}

TEST_CASE("quantize_weights: no gradients of the weight", "[quantize]") {
    nn::Sequential net(nn::LayerNorm(64), nn::Linear(64, 4));
    optim::SGD optimizer(net.parameters(), {.lr = 0.5});
    nn::quantize_weights(net);
    net.freeze();
    const std::string text = error_message([&] { net.unfreeze(); }, ErrorKind::dtype);
    CHECK_THAT(text, Contains("unfreeze: 1.weight is an 8-bit weight of quantize_weights()"));
    for (const Tensor& p : net.parameters()) CHECK_FALSE(p.requires_grad());

    const Tensor weight = net.at<nn::Linear>(1).weight, before = weight.clone();
    for (const Dtype dtype : {int8, float32})
        CHECK_THAT(error_message(
                       [&] {
                           weight.set_grad(ones({4, 64}).to(dtype));
                       },
                       ErrorKind::dtype),
                   Contains("set_grad: an 8-bit weight of quantize_weights()"));
    weight.set_grad({});
    optimizer.step();
    CHECK(same(weight, before));
}

TEST_CASE("quantize_weights: errors of ops name dequantize_weight()", "[quantize]") {
    const Tensor x = ones({2, 64});
    const auto advice = Contains("dequantize_weight()");
    for (const nn::QuantizeWeightsOptions& options : {nn::QuantizeWeightsOptions{}, e4m3}) {
        nn::Sequential net(nn::Linear(64, 4), nn::BatchNorm1d(4));
        net.eval();
        nn::quantize_weights(net, options);
        const auto& linear = net.at<nn::Linear>(0);
        CHECK_THAT(error_message([&] { (void)matmul(x, linear.weight.t()); }, ErrorKind::dtype), advice);
        const std::string fused = error_message(
            [&] { (void)nn::fuse_linear_bn_eval(linear, net.at<nn::BatchNorm1d>(1)); }, ErrorKind::dtype);
        CHECK_THAT(fused, Contains("fuse_linear_bn_eval: the weight") && advice);
        CHECK_THAT(error_message([&] { (void)nn::fuse_batch_norms(net, [&] { return Tensors{net(x)}; }); },
                                 ErrorKind::dtype),
                   advice);
    }
}
