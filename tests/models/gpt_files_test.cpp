// Files of nn::Gpt and nn::Llama: configurations, names, folders.
#include "mezzo/models/gpt_files.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "mezzo/io.h"
#include "mezzo/models/causal_lm.h"
#include "mezzo/models/gpt_config.h"
#include "tests/models/causal_models.h"
#include "tests/support/folder.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

template <class F> std::string message(const F& f, ErrorKind kind = ErrorKind::value) {
    try {
        (void)f();
    } catch (const Error& e) {
        CHECK(e.kind() == kind);
        return e.what();
    }
    return "no error";
}

void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace

TEST_CASE("GPT configuration: what a config.json says", "[io][causal]") {
    const nn::GptConfig config =
        io::parse_gpt_config(R"({"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 6,
        "n_inner": null, "activation_function": "gelu", "layer_norm_epsilon": 1e-6, "resid_pdrop": 0, "n_ctx": 7,
        "tie_word_embeddings": false, "task_specific_params": {"a": [1]}})");
    nn::GptConfig expected;
    expected.n_layer = 3;
    expected.n_embd = 48;
    expected.n_head = 6;
    expected.activation_function = "gelu";
    expected.layer_norm_epsilon = 1e-6;
    expected.resid_pdrop = 0;
    expected.tie_word_embeddings = false;
    CHECK(config == expected);
    expected.n_inner = 100;
    CHECK(io::parse_gpt_config(io::to_json(expected)) == expected);
    CHECK(io::parse_gpt_config("{}") == nn::GptConfig());
}

TEST_CASE("Llama configuration: what a config.json says", "[io][causal]") {
    const nn::LlamaConfig config = io::parse_llama_config(R"({"model_type": "llama", "hidden_size": 64,
        "num_attention_heads": 8, "num_key_value_heads": 4, "rope_theta": 500000.0, "rope_scaling": null,
        "rms_norm_eps": 1e-05, "head_dim": 16, "attention_bias": false})");
    nn::LlamaConfig expected;
    expected.hidden_size = 64;
    expected.num_attention_heads = 8;
    expected.num_key_value_heads = 4;
    expected.rope_theta = 500000;
    expected.rms_norm_eps = 1e-5;
    expected.head_dim = 16;
    CHECK(config == expected);
    CHECK(io::parse_llama_config(io::to_json(expected)) == expected);
    expected = {};
    expected.rope_theta = 123;
    CHECK(io::parse_llama_config(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 123}})") ==
          expected);
}

TEST_CASE("GPT and Llama configurations refuse what the models do not have", "[io][causal]") {
    const auto gpt = [](const char* text) { return message([&] { return io::parse_gpt_config(text); }); };
    CHECK_THAT(gpt("[]"), StartsWith("GPT configuration: the file holds an array"));
    CHECK_THAT(gpt(R"({"model_type": "bert"})"), Contains("model_type is \"bert\""));
    CHECK_THAT(gpt(R"({"n_head": 0})"), Contains("n_head is 0"));
    CHECK_THAT(gpt(R"({"n_head": 7})"), Contains("n_embd 768 is no multiple of n_head 7"));
    CHECK_THAT(gpt(R"({"n_embd": 99999999999})"), Contains("99999999999"));
    CHECK_THAT(gpt(R"({"n_embd": "x"})"), Contains("n_embd is \"x\""));
    CHECK_THAT(gpt(R"({"n_inner": -4})"), Contains("n_inner is -4"));
    CHECK_THAT(gpt(R"({"n_inner": 0})"), Contains("n_inner is 0"));
    CHECK_THAT(gpt(R"({"attn_pdrop": 1.5})"), Contains("attn_pdrop is 1.5"));
    CHECK_THAT(gpt(R"({"activation_function": "swish"})"), Contains("swish"));
    CHECK_THAT(gpt(R"({"scale_attn_by_inverse_layer_idx": true})"),
               Contains("scale_attn_by_inverse_layer_idx is true"));
    CHECK_THAT(gpt(R"({"tie_word_embeddings": 1})"), Contains("true or false"));
    const auto llama = [](const char* text) { return message([&] { return io::parse_llama_config(text); }); };
    CHECK_THAT(llama(R"({"hidden_act": "gelu"})"), StartsWith("Llama configuration: hidden_act is \"gelu\""));
    CHECK_THAT(llama(R"({"attention_bias": true})"), Contains("attention_bias is true"));
    CHECK_THAT(llama(R"({"mlp_bias": true})"), Contains("mlp_bias is true"));
    CHECK_THAT(llama(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})"),
               Contains("rope_type is \"llama3\""));
    CHECK_THAT(llama(R"({"rope_scaling": 2})"), Contains("rope_scaling"));
    CHECK_THAT(llama(R"({"rope_theta": 0})"), Contains("rope_theta is 0"));
    CHECK_THAT(llama(R"({"num_key_value_heads": 5})"), Contains("num_key_value_heads 5"));
    CHECK_THAT(llama(R"({"head_dim": 3})"), Contains("head_dim is 3"));
    CHECK_THAT(message([] { return io::parse_gpt_config("{"); }, ErrorKind::io),
               StartsWith("GPT configuration"));
    nn::LlamaConfig wrong;
    wrong.head_dim = 3;
    CHECK_THAT(message([&] { return io::to_json(wrong); }), Contains("head_dim"));
}

TEST_CASE("GPT and Llama files: names", "[io][causal]") {
    CHECK(io::gpt_name("h.0.attn.c_attn.weight") == "transformer.h.0.attn.c_attn.weight");
    CHECK(io::gpt_name("transformer.wte.weight") == "transformer.wte.weight");
    CHECK(io::gpt_name("lm_head.weight") == "lm_head.weight");
    CHECK(io::gpt_name("h.11.attn.bias").empty());
    CHECK(io::gpt_name("transformer.h.11.attn.masked_bias").empty());
    CHECK(io::gpt_name("h.1.attn.c_attn.bias") == "transformer.h.1.attn.c_attn.bias");
    CHECK(io::llama_name("layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight");
    CHECK(io::llama_name("model.norm.weight") == "model.norm.weight");
    CHECK(io::llama_name("model.layers.0.self_attn.rotary_emb.inv_freq").empty());
}

TEST_CASE("GPT and Llama folders: what is saved is loaded", "[io][causal]") {
    const test::Folder folder;
    const std::filesystem::path path = folder.path;
    const NoGrad plain;
    const Tensor ids = Tensor::from(std::vector<std::int64_t>{3, 1, 4, 1, 5}, {1, 5});
    const auto models = test::filled_models();
    for (const auto& model : models) {
        const bool gpt = model == models[0];
        write(path / "config.json", gpt ? io::to_json(test::tiny_gpt()) : io::to_json(test::tiny_llama()));
        io::save_safetensors((path / "model.safetensors").string(), model->state_dict());
        const nn::AnyModule handle = io::load_causal_lm(path.string());
        const auto& loaded = handle.as<nn::CausalLm>();
        CHECK(std::string(loaded.type_name()) == model->type_name());
        CHECK_FALSE(loaded.training());
        CHECK(all_close(loaded(ids), (*model)(ids), 0, 0));

        // Files of the model without its head, in 16 bit.
        StateDict bare = io::without_prefix(model->state_dict(), gpt ? "transformer." : "model.");
        if (!gpt) bare.emplace_back("lm_head.weight", model->state_dict()["lm_head.weight"]);
        for (auto& [name, value] : bare) value = value.to(bfloat16);
        bare.emplace_back(gpt ? "h.0.attn.bias" : "layers.0.self_attn.rotary_emb.inv_freq", ones({4}));
        io::save_safetensors((path / "model.safetensors").string(), bare);
        CHECK(all_close(io::load_causal_lm(path.string()).as<nn::CausalLm>()(ids), (*model)(ids), 0.1, 0.3));

        bare.erase(bare.begin());
        io::save_safetensors((path / "model.safetensors").string(), bare);
        CHECK_THAT(message([&] { return io::load_causal_lm(path.string()); }), Contains("missing"));
    }
    write(path / "config.json", R"({"model_type": "bert"})");
    CHECK_THAT(message([&] { return io::load_causal_lm(path.string()); }),
               StartsWith("load_causal_lm: ") && Contains("bert"));
    std::filesystem::remove(path / "config.json");
    CHECK_THAT(message([&] { return io::load_causal_lm(path.string()); }, ErrorKind::io),
               Contains("config.json"));
}
