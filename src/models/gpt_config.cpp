// Reads and writes config.json of Hugging Face GPT-2 and Llama models, with the defaults of its GPT2Config
// and LlamaConfig.
#include <algorithm>
#include <array>

#include "io/file.h"
#include "mezzo/error.h"
#include "mezzo/models/gpt_files.h"
#include "models/config_reader.h"

namespace mezzo::io {

namespace {

using nn::GptConfig;
using nn::LlamaConfig;

constexpr IntegerField<GptConfig> gpt_integers[] = {
    {"vocab_size", &GptConfig::vocab_size, 1}, {"n_positions", &GptConfig::n_positions, 1},
    {"n_embd", &GptConfig::n_embd, 1},         {"n_layer", &GptConfig::n_layer, 1},
    {"n_head", &GptConfig::n_head, 1},
};
constexpr RealField<GptConfig> gpt_reals[] = {
    {"resid_pdrop", &GptConfig::resid_pdrop, false},
    {"embd_pdrop", &GptConfig::embd_pdrop, false},
    {"attn_pdrop", &GptConfig::attn_pdrop, false},
    {"layer_norm_epsilon", &GptConfig::layer_norm_epsilon, true},
    {"initializer_range", &GptConfig::initializer_range, false},
};
constexpr std::array gpt_activations{"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"};

constexpr IntegerField<LlamaConfig> llama_integers[] = {
    {"vocab_size", &LlamaConfig::vocab_size, 1},
    {"max_position_embeddings", &LlamaConfig::max_position_embeddings, 1},
    {"hidden_size", &LlamaConfig::hidden_size, 1},
    {"intermediate_size", &LlamaConfig::intermediate_size, 1},
    {"num_hidden_layers", &LlamaConfig::num_hidden_layers, 1},
    {"num_attention_heads", &LlamaConfig::num_attention_heads, 1},
};
constexpr RealField<LlamaConfig> llama_reals[] = {
    {"rms_norm_eps", &LlamaConfig::rms_norm_eps, true},
    {"initializer_range", &LlamaConfig::initializer_range, false},
};

void check_optional(const std::string& where, const char* name, const std::optional<std::int64_t>& value) {
    if (value) check_size(where, name, *value, 1);
}

void check_multiple(const std::string& where, const char* name, std::int64_t n, const char* of,
                    std::int64_t unit) {
    check(n % unit == 0, ErrorKind::value, where, ": ", name, " ", n, " is no multiple of ", of, " ", unit);
}

void check_config(const GptConfig& c, const std::string& where) {
    check_fields<GptConfig>(gpt_integers, gpt_reals, c, where);
    check_optional(where, "n_inner", c.n_inner);
    check_multiple(where, "n_embd", c.n_embd, "n_head", c.n_head);
    check(std::find(gpt_activations.begin(), gpt_activations.end(), c.activation_function) !=
              gpt_activations.end(),
          ErrorKind::value, where, ": activation_function is ", shown(c.activation_function),
          "; gelu, gelu_new, gelu_pytorch_tanh and relu are known");
}

void check_config(const LlamaConfig& c, const std::string& where) {
    check_fields<LlamaConfig>(llama_integers, llama_reals, c, where);
    check_optional(where, "num_key_value_heads", c.num_key_value_heads);
    check_optional(where, "head_dim", c.head_dim);
    if (c.num_key_value_heads)
        check_multiple(where, "num_attention_heads", c.num_attention_heads, "num_key_value_heads",
                       *c.num_key_value_heads);
    if (!c.head_dim)
        check_multiple(where, "hidden_size", c.hidden_size, "num_attention_heads", c.num_attention_heads);
    const std::int64_t dim = c.head_dim.value_or(c.hidden_size / c.num_attention_heads);
    check(dim % 2 == 0, ErrorKind::value, where, ": head_dim is ", dim,
          "; rotary positions need an even one");
    check(c.rope_theta > 0 && c.rope_theta < 1e30, ErrorKind::value, where, ": rope_theta is ", c.rope_theta,
          "; it must be positive");
}

GptConfig parse_gpt(std::string_view text, const std::string& where) {
    const JsonValue tree = parse_json_tree(text, where);
    const ConfigReader file(tree, where);
    file.expect("model_type", "gpt2");
    file.expect("scale_attn_weights", true, "only scaled attention is computed");
    file.expect("scale_attn_by_inverse_layer_idx", false, "scores are not scaled by their layer");
    file.expect("add_cross_attention", false, "only decoders without an encoder are read");
    GptConfig config;
    file.read<GptConfig>(gpt_integers, config);
    file.read<GptConfig>(gpt_reals, config);
    file.read("n_inner", config.n_inner, 1);
    file.read("activation_function", config.activation_function);
    file.read("tie_word_embeddings", config.tie_word_embeddings);
    check_config(config, where);
    return config;
}

// Reads the settings of rotary positions: rope_theta is a field of its own in older files, and in
// rope_parameters in newer ones.
void read_rope(const ConfigReader& file, LlamaConfig& config) {
    file.read("rope_theta", config.rope_theta);
    for (const char* const key : {"rope_scaling", "rope_parameters"}) {
        const JsonValue* const value = file.given(key);
        if (!value) continue;
        if (value->kind != JsonKind::object) file.wrong(key, *value, "an object");
        const ConfigReader rope(*value, file.where());
        rope.expect("type", "default");
        rope.expect("rope_type", "default");
        rope.read("rope_theta", config.rope_theta);
    }
}

LlamaConfig parse_llama(std::string_view text, const std::string& where) {
    const JsonValue tree = parse_json_tree(text, where);
    const ConfigReader file(tree, where);
    file.expect("model_type", "llama");
    file.expect("hidden_act", "silu");
    file.expect("attention_bias", false, "projections of attention have no bias here");
    file.expect("mlp_bias", false, "layers of the feed-forward part have no bias here");
    LlamaConfig config;
    file.read<LlamaConfig>(llama_integers, config);
    file.read<LlamaConfig>(llama_reals, config);
    file.read("num_key_value_heads", config.num_key_value_heads, 1);
    file.read("head_dim", config.head_dim, 1);
    file.read("tie_word_embeddings", config.tie_word_embeddings);
    read_rope(file, config);
    check_config(config, where);
    return config;
}

}  // namespace

nn::GptConfig parse_gpt_config(std::string_view text) { return parse_gpt(text, "GPT configuration"); }

nn::GptConfig load_gpt_config(const std::string& path) {
    return parse_gpt(read_text("GPT configuration", path, max_config_bytes), "GPT configuration: " + path);
}

nn::LlamaConfig parse_llama_config(std::string_view text) { return parse_llama(text, "Llama configuration"); }

nn::LlamaConfig load_llama_config(const std::string& path) {
    return parse_llama(read_text("Llama configuration", path, max_config_bytes),
                       "Llama configuration: " + path);
}

std::string to_json(const nn::GptConfig& config) {
    check_config(config, "GPT configuration");
    ConfigWriter out("GPT2LMHeadModel", "gpt2");
    out.add<GptConfig>(gpt_integers, config);
    out.add<GptConfig>(gpt_reals, config);
    out.add("n_inner", config.n_inner);
    out.add("activation_function", '"' + config.activation_function + '"');
    out.add("tie_word_embeddings", config.tie_word_embeddings);
    return out.text();
}

std::string to_json(const nn::LlamaConfig& config) {
    check_config(config, "Llama configuration");
    ConfigWriter out("LlamaForCausalLM", "llama");
    out.add<LlamaConfig>(llama_integers, config);
    out.add<LlamaConfig>(llama_reals, config);
    out.add("rope_theta", config.rope_theta);
    out.add("num_key_value_heads", config.num_key_value_heads);
    out.add("head_dim", config.head_dim);
    out.add("hidden_act", "\"silu\"");
    out.add("tie_word_embeddings", config.tie_word_embeddings);
    return out.text();
}

}  // namespace mezzo::io
