// nn::Gpt and nn::Llama: names, values and gradients against transformers, causality, padding, the tied
// embedding, overflow.
#include "mezzo/models/causal_lm.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/amp.h"
#include "mezzo/optim.h"
#include "tests/models/causal_models.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/causal.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using test::doubles;
using test::filled_gpt;
using test::filled_llama;

namespace {

constexpr std::int64_t batch = 2, length = 6, vocabulary = 23;

// Token ids [2, 7]: 6 inputs and the target of the last one.
Tensor text(Device device = cpu_device) {
    std::vector<std::int64_t> ids;
    for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t i = 0; i <= length; ++i) ids.push_back((7 * i + 5 * b + i * i) % vocabulary);
    return Tensor::from(ids, {batch, length + 1}).to(device);
}
Tensor input(Device device = cpu_device) { return text(device)[{ellipsis, Slice(0, -1)}]; }
Tensor target(Device device = cpu_device) { return text(device)[{ellipsis, Slice(1)}]; }

struct Expected {
    std::vector<double> logits, norms, waves;
    double loss;
};
template <std::size_t n> std::vector<double> listed(const double (&values)[n]) {
    return {values, values + n};
}
Expected expected_gpt() {
    using namespace causal_reference;
    return {listed(gpt_logits), listed(gpt_gradient_norms), listed(gpt_gradient_waves), gpt_loss[0]};
}
Expected expected_llama() {
    using namespace causal_reference;
    return {listed(llama_logits), listed(llama_gradient_norms), listed(llama_gradient_waves), llama_loss[0]};
}

struct Precision {
    const char* name;
    Dtype parameters;
    bool mixed;
    Dtype dtype;
    double logits, gradients;  // allowed, relative to the largest
};
// transformers computes Llama's norms and angles in float32 whatever the dtype.
const Precision precisions[] = {{"float64", float64, false, float16, 2e-6, 2e-6},
                                {"float32", float32, false, float16, 5e-6, 1e-5},
                                {"float16", float32, true, float16, 4e-3, 1e-2},
                                {"bfloat16", float32, true, bfloat16, 3e-2, 6e-2}};

double largest(const std::vector<double>& values) {
    double result = 0;
    for (const double v : values) result = std::max(result, std::abs(v));
    return result;
}

// Gradients in the layout of files, in the order of the parameters' names.
std::vector<std::pair<std::string, std::vector<double>>> gradients(const nn::CausalLm& model) {
    std::vector<std::pair<std::string, std::vector<double>>> result;
    for (const auto& [name, parameter] : model.named_parameters()) {
        const bool turned = name.find("c_") != name.npos && parameter.dim() == 2;
        const Tensor gradient = parameter.grad();
        result.emplace_back(name, doubles(turned ? gradient.t() : gradient));
    }
    std::sort(result.begin(), result.end());
    return result;
}

void check_against(const nn::CausalLm& model, const Expected& expected, const Precision& p, Device device) {
    Tensor logits, loss;
    {
        const amp::Autocast scope({.device = device.type(), .dtype = p.dtype, .enabled = p.mixed});
        logits = model(input(device));
        loss = model.loss(input(device), target(device));
    }
    loss.backward();
    CHECK(logits.shape() == Shape{batch, length, vocabulary});
    CHECK(test::difference(doubles(logits), expected.logits, {0, p.logits * largest(expected.logits)}) == "");
    CHECK(loss.item<double>() == Approx(expected.loss).margin(p.logits * expected.loss));
    const auto all = gradients(model);
    REQUIRE(all.size() == expected.norms.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        INFO(all[i].first);
        double square = 0, wave = 0;
        for (std::size_t j = 0; j < all[i].second.size(); ++j) {
            square += all[i].second[j] * all[i].second[j];
            wave += all[i].second[j] * std::sin(M_PI * 0.1 * double(j));
        }
        const double norm = expected.norms[i];
        CHECK(std::sqrt(square) == Approx(norm).margin(p.gradients * norm + 1e-6));
        // The wave has many small terms that cancel.
        CHECK(wave == Approx(expected.waves[i]).margin(5 * p.gradients * norm + 1e-6));
    }
}

}  // namespace

TEST_CASE("language models: values and gradients are those of transformers", "[causal]") {
    for (const Device device : test::devices()) {
        for (const Precision& p : precisions) {
            CAPTURE(device.type(), p.name);
            {
                INFO("gpt");
                check_against(filled_gpt(p.parameters, device), expected_gpt(), p, device);
            }
            INFO("llama");
            check_against(filled_llama(p.parameters, device), expected_llama(), p, device);
        }
    }
}

TEST_CASE("language models: names and shapes are those of Hugging Face's files", "[causal]") {
    nn::GptConfig gpt = test::tiny_gpt();
    gpt.n_layer = 1;
    const std::vector<std::string> gpt_names{"transformer.wte.weight",
                                             "transformer.wpe.weight",
                                             "transformer.h.0.ln_1.weight",
                                             "transformer.h.0.ln_1.bias",
                                             "transformer.h.0.attn.c_attn.weight",
                                             "transformer.h.0.attn.c_attn.bias",
                                             "transformer.h.0.attn.c_proj.weight",
                                             "transformer.h.0.attn.c_proj.bias",
                                             "transformer.h.0.ln_2.weight",
                                             "transformer.h.0.ln_2.bias",
                                             "transformer.h.0.mlp.c_fc.weight",
                                             "transformer.h.0.mlp.c_fc.bias",
                                             "transformer.h.0.mlp.c_proj.weight",
                                             "transformer.h.0.mlp.c_proj.bias",
                                             "transformer.ln_f.weight",
                                             "transformer.ln_f.bias"};
    CHECK(test::names_of(nn::Gpt(gpt).state_dict()) == gpt_names);
    for (const auto& [name, value] : nn::Gpt(gpt).state_dict()) {
        if (name.ends_with("c_attn.weight")) CHECK(value.shape() == Shape{32, 96});
        if (name.ends_with("mlp.c_proj.weight")) CHECK(value.shape() == Shape{128, 32});
    }
    gpt.tie_word_embeddings = false;
    CHECK(test::names_of(nn::Gpt(gpt).state_dict()).back() == "lm_head.weight");

    nn::LlamaConfig llama = test::tiny_llama();
    llama.num_hidden_layers = 1;
    const std::vector<std::string> llama_names{"model.embed_tokens.weight",
                                               "model.layers.0.self_attn.q_proj.weight",
                                               "model.layers.0.self_attn.k_proj.weight",
                                               "model.layers.0.self_attn.v_proj.weight",
                                               "model.layers.0.self_attn.o_proj.weight",
                                               "model.layers.0.mlp.gate_proj.weight",
                                               "model.layers.0.mlp.up_proj.weight",
                                               "model.layers.0.mlp.down_proj.weight",
                                               "model.layers.0.input_layernorm.weight",
                                               "model.layers.0.post_attention_layernorm.weight",
                                               "model.norm.weight",
                                               "lm_head.weight"};
    CHECK(test::names_of(nn::Llama(llama).state_dict()) == llama_names);
    llama.tie_word_embeddings = true;
    CHECK(test::names_of(nn::Llama(llama).state_dict()).back() == "model.norm.weight");
}

TEST_CASE("language models: fresh weights have their deviations", "[causal]") {
    manual_seed(1);
    nn::GptConfig config = test::tiny_gpt();
    config.n_embd = 128;
    const nn::Gpt gpt(config);
    const auto deviation = [](const Tensor& x) {
        return std::sqrt(mean(x.detach() * x.detach()).item<double>());
    };
    CHECK(deviation(gpt.transformer.h[0].attn.c_attn.weight) == Approx(0.02).epsilon(0.05));
    CHECK(deviation(gpt.transformer.h[1].mlp.c_proj.weight) == Approx(0.01).epsilon(0.05));  // 0.02 / sqrt(4)
    CHECK(deviation(gpt.transformer.h[1].attn.c_proj.bias) == 0);
    CHECK(all_close(gpt.transformer.ln_f.weight, ones({128})));
    CHECK(deviation(nn::Llama(test::tiny_llama()).model.layers[1].mlp.up_proj.weight) ==
          Approx(0.02).epsilon(0.1));
}

TEST_CASE("language models: no token sees those after it", "[causal]") {
    const NoGrad plain;
    for (const auto& model : test::filled_models()) {
        CAPTURE(model->type_name());
        const Tensor before = (*model)(input());
        const Tensor other = input().clone();
        other[{ellipsis, Slice(4)}].fill_(1);
        const Tensor after = (*model)(other);
        CHECK(all_close(before[{ellipsis, Slice(0, 4), Slice()}], after[{ellipsis, Slice(0, 4), Slice()}], 0,
                        0));
        CHECK_FALSE(all_close(before[{ellipsis, 4, Slice()}], after[{ellipsis, 4, Slice()}], 1e-3, 1e-3));
    }
}

TEST_CASE("language models: padding on the left changes nothing", "[causal]") {
    const NoGrad plain;
    for (const auto& model : test::filled_models()) {
        CAPTURE(model->type_name());
        const Tensor padded =
            cat({Tensor::from(std::vector<std::int64_t>{9, 9, 9, 3, 4, 5}, {2, 3}), input()}, 1);
        const Tensor padding = Tensor::from(std::vector<std::int64_t>{3, 0}, {2});
        const Tensor logits = (*model)(padded, {.padding = padding});
        CHECK(all_close(logits[{0, Slice(3), Slice()}], (*model)(input())[0], 1e-5, 1e-4));
        CHECK(all_close(logits[1], (*model)(padded)[1], 1e-5, 1e-4));
    }
}

TEST_CASE("language models: the tied embedding sums both gradients in float32", "[causal]") {
    nn::GptConfig config = test::tiny_gpt();
    const nn::Gpt tied = filled_gpt();
    config.tie_word_embeddings = false;
    nn::Gpt apart(config);
    apart.load_state_dict(tied.state_dict(), false);
    {
        const NoGrad plain;
        apart.lm_head.weight.copy_(tied.transformer.wte.weight);
    }
    for (const nn::Gpt* const model : {&tied, static_cast<const nn::Gpt*>(&apart)}) {
        const amp::Autocast scope({.dtype = bfloat16});
        model->loss(input(), target()).backward();
    }
    const Tensor gradient = tied.transformer.wte.weight.grad();
    CHECK(gradient.dtype() == float32);
    CHECK(all_close(gradient, apart.transformer.wte.weight.grad() + apart.lm_head.weight.grad(), 1e-6, 1e-6));
}

TEST_CASE("language models: layers computed again give the same gradients", "[causal]") {
    nn::Gpt gpt = filled_gpt();
    gpt.loss(input(), target()).backward();
    const auto kept = gradients(gpt);
    gpt.zero_grad();
    gpt.transformer.checkpoint_layers = true;
    gpt.loss(input(), target()).backward();
    CHECK(gradients(gpt) == kept);

    nn::Llama llama = filled_llama();
    llama.loss(input(), target()).backward();
    const auto also_kept = gradients(llama);
    llama.zero_grad();
    llama.model.checkpoint_layers = true;
    llama.loss(input(), target()).backward();
    CHECK(gradients(llama) == also_kept);
}

TEST_CASE("language models: a step that overflows is skipped", "[causal]") {
    nn::Llama model = filled_llama();
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    amp::GradScaler scaler({.init_scale = 1e30});
    const Tensor before = model.lm_head.weight.detach().clone();
    const auto step = [&] {
        optimizer.zero_grad();
        Tensor loss;
        {
            const amp::Autocast scope({.dtype = float16});
            loss = model.loss(input(), target());
        }
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        return loss.item<double>();
    };
    const double first = step();
    CHECK(all_close(model.lm_head.weight, before, 0, 0));
    CHECK(scaler.get_scale() == Approx(5e29));
    scaler = amp::GradScaler({.init_scale = 128});
    for (int i = 0; i < 10; ++i) step();
    CHECK(step() < 0.5 * first);
}

TEST_CASE("language models refuse what does not fit", "[causal]") {
    const NoGrad plain;
    const nn::Gpt gpt = filled_gpt();
    const auto message = [](const auto& f) -> std::string {
        try {
            f();
        } catch (const Error& e) {
            return e.what();
        }
        return "no error";
    };
    CHECK_THAT(message([&] { (void)gpt(input()[0]); }), StartsWith("Gpt: ids") && Contains("[6]"));
    CHECK_THAT(message([&] { (void)gpt(input().to(int32)); }), StartsWith("Gpt: ids are int32"));
    CHECK_THAT(message([&] {
                   (void)gpt(zeros({1, 17}, {.dtype = int64}));
               }),
               Contains("17") && Contains("16"));
    CHECK_THAT(message([&] { (void)gpt(zeros({1, 0}, {.dtype = int64})); }), Contains("there are no ids"));
    CHECK_THAT(message([&] { (void)gpt(input(), {.padding = zeros({3}, {.dtype = int64})}); }),
               StartsWith("Gpt: padding [3]"));
    CHECK_THAT(message([&] { (void)gpt(input(), {.padding = zeros({2})}); }),
               StartsWith("Gpt: padding is float32"));
    const auto padded = [](std::int64_t n) { return Tensor::from(std::vector<std::int64_t>{0, n}, {2}); };
    CHECK_THAT(message([&] { (void)gpt(input(), {.padding = padded(-1)}); }),
               StartsWith("Gpt: padding -1 is not in [0, 6]"));
    CHECK_THAT(message([&] { (void)gpt(input(), {.padding = padded(7)}); }), StartsWith("Gpt: padding 7"));
    CHECK(gpt(input(), {.padding = padded(6)}).shape() == Shape{2, 6, vocabulary});
    CHECK_THAT(message([&] { (void)gpt.loss(input(), target()[0]); }),
               StartsWith("Gpt: loss: the targets [6]"));
    nn::GptConfig config = test::tiny_gpt();
    config.n_head = 5;
    CHECK_THAT(message([&] { nn::Gpt{config}; }),
               StartsWith("GptConfig: n_embd 32 is no multiple of n_head 5"));
    config = test::tiny_gpt();
    config.activation_function = "swish";
    CHECK_THAT(message([&] { nn::Gpt{config}; }), StartsWith("GptConfig: activation_function is \"swish\""));
    nn::LlamaConfig llama = test::tiny_llama();
    llama.num_key_value_heads = 3;
    CHECK_THAT(message([&] { nn::Llama{llama}; }), StartsWith("LlamaConfig: num_attention_heads 4"));
    llama = test::tiny_llama();
    llama.head_dim = 7;
    CHECK_THAT(message([&] { nn::Llama{llama}; }), StartsWith("LlamaConfig: head_dim 7"));
    llama = test::tiny_llama();
    llama.rope_theta = INFINITY;
    CHECK_THAT(message([&] { nn::Llama{llama}; }), StartsWith("LlamaConfig: rope_theta is inf"));
    llama = test::tiny_llama();
    llama.initializer_range = INFINITY;
    CHECK_THAT(message([&] { nn::Llama{llama}; }), StartsWith("LlamaConfig: initializer_range is inf"));
    config = test::tiny_gpt();
    config.initializer_range = INFINITY;
    CHECK_THAT(message([&] { nn::Gpt{config}; }), StartsWith("GptConfig: initializer_range is inf"));
}

TEST_CASE("language models refuse a cache that has no keys of their layers", "[causal]") {
    const nn::Gpt gpt = filled_gpt(float32);
    nn::GptConfig deeper = test::tiny_gpt();
    ++deeper.n_layer;
    const nn::Gpt other(deeper);
    const NoGrad plain;
    nn::KeyValueCache cache(16);
    (void)gpt(input(), {.cache = &cache});
    CHECK_THROWS_WITH(other(input(), {.cache = &cache}),
                      StartsWith("KeyValueCache: it holds 6 tokens, but no keys of layer 2"));
    CHECK(cache.length() == 6);
    nn::KeyValueCache moved(std::move(cache));
    CHECK_THROWS_WITH(gpt(input(), {.cache = &cache}), StartsWith("KeyValueCache: it holds 6 tokens"));
    CHECK(gpt(input(), {.cache = &moved}).shape() == Shape{2, 6, vocabulary});
}

TEST_CASE("language models refuse more ids than a text has", "[causal]") {
    const nn::Gpt gpt = filled_gpt(float32);
    const NoGrad plain;
    nn::KeyValueCache cache(2 * gpt.max_length());
    (void)gpt(zeros({1, gpt.max_length()}, {.dtype = int64}), {.cache = &cache});
    CHECK_THROWS_WITH(gpt(zeros({1, 1}, {.dtype = int64}), {.cache = &cache}), Contains("are more than the"));
    CHECK(cache.length() == gpt.max_length());
}
