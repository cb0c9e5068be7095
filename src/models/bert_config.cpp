// Reads and writes config.json of Hugging Face BERT models, with the defaults of its BertConfig.
#include <fmt/format.h>

#include <algorithm>

#include "io/file.h"
#include "io/json.h"
#include "mezzo/error.h"
#include "mezzo/models/bert_config.h"
#include "models/config_reader.h"

namespace mezzo::io {

namespace {

using nn::BertConfig;

constexpr IntegerField<BertConfig> integers[] = {
    {"vocab_size", &BertConfig::vocab_size, 1},
    {"hidden_size", &BertConfig::hidden_size, 1},
    {"num_hidden_layers", &BertConfig::num_hidden_layers, 1},
    {"num_attention_heads", &BertConfig::num_attention_heads, 1},
    {"intermediate_size", &BertConfig::intermediate_size, 1},
    {"max_position_embeddings", &BertConfig::max_position_embeddings, 1},
    {"type_vocab_size", &BertConfig::type_vocab_size, 1},
    {"pad_token_id", &BertConfig::pad_token_id, 0},
    {"num_labels", &BertConfig::num_labels, 1},
};

constexpr RealField<BertConfig> reals[] = {
    {"hidden_dropout_prob", &BertConfig::hidden_dropout_prob, false},
    {"attention_probs_dropout_prob", &BertConfig::attention_probs_dropout_prob, false},
    {"initializer_range", &BertConfig::initializer_range, false},
    {"layer_norm_eps", &BertConfig::layer_norm_eps, true},
};

constexpr const char* activations[] = {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"};

void check_config(const BertConfig& config, const std::string& where) {
    check_fields<BertConfig>(integers, reals, config, where);
    if (config.classifier_dropout)
        check_fraction(where, "classifier_dropout", *config.classifier_dropout, false);
    check(config.hidden_size % config.num_attention_heads == 0, ErrorKind::value, where, ": hidden_size ",
          config.hidden_size, " is no multiple of num_attention_heads ", config.num_attention_heads);
    check(config.pad_token_id < config.vocab_size, ErrorKind::value, where, ": pad_token_id ",
          config.pad_token_id, " is not in a vocabulary of ", config.vocab_size);
    const bool known =
        std::find(std::begin(activations), std::end(activations), config.hidden_act) != std::end(activations);
    check(known, ErrorKind::value, where, ": hidden_act is ", shown(config.hidden_act),
          "; gelu, gelu_new, gelu_pytorch_tanh, relu and silu are known");
}

void check_label_ids(const ConfigReader& file, const JsonValue& names) {
    const std::size_t count = names.members.size();
    std::vector<bool> seen(count);
    for (const auto& [key, value] : names.members) {
        std::size_t id = 0;
        for (const char c : key)
            id = c >= '0' && c <= '9' && id <= count ? 10 * id + std::size_t(c - '0') : count;
        if (key.empty() || id >= count || seen[id])
            fail(ErrorKind::value, file.where(), ": id2label has ", count, " labels, one of them number ",
                 shown(key), "; 0 to ", count - 1, " are expected");
        seen[id] = true;
        if (value.kind != JsonKind::string) file.wrong("a label of id2label", value, "a string");
    }
}

// Reads the number of labels from id2label, or else from label2id.
void read_labels(const ConfigReader& file, BertConfig& config) {
    const JsonValue* const names = file.given("id2label");
    const JsonValue* const ids = file.given("label2id");
    for (const JsonValue* const labels : {names, ids})
        if (labels && labels->kind != JsonKind::object)
            file.wrong(labels == names ? "id2label" : "label2id", *labels, "an object");
    if (names) check_label_ids(file, *names);
    if (!names && !ids) return;
    const std::size_t count = (names ? names : ids)->members.size();
    check(!file.object().find("num_labels") || config.num_labels == std::int64_t(count), ErrorKind::value,
          file.where(), ": num_labels is ", config.num_labels, ", but ", names ? "id2label" : "label2id",
          " has ", count, " labels");
    config.num_labels = std::int64_t(count);
}

BertConfig parse(std::string_view text, const std::string& where) {
    const JsonValue tree = parse_json_tree(text, where);
    const ConfigReader file(tree, where);
    file.expect("model_type", "bert");
    file.expect("position_embedding_type", "absolute");
    file.expect("is_decoder", false, "only encoders are read");
    BertConfig config;
    file.read<BertConfig>(integers, config);
    file.read<BertConfig>(reals, config);
    if (file.given("classifier_dropout"))
        file.read("classifier_dropout", config.classifier_dropout.emplace());
    file.read("hidden_act", config.hidden_act);
    read_labels(file, config);
    check_config(config, where);
    return config;
}

}  // namespace

nn::BertConfig parse_bert_config(std::string_view text) { return parse(text, "BERT configuration"); }

nn::BertConfig load_bert_config(const std::string& path) {
    return parse(read_text("BERT configuration", path, max_config_bytes), "BERT configuration: " + path);
}

std::string to_json(const nn::BertConfig& config) {
    check_config(config, "BERT configuration");
    ConfigWriter out("BertModel", "bert");
    out.add("position_embedding_type", "\"absolute\"");
    for (const auto& field : integers)
        if (field.value != &BertConfig::num_labels) out.add(field.name, config.*field.value);
    out.add<BertConfig>(reals, config);
    out.add("classifier_dropout", config.classifier_dropout);
    out.add("hidden_act", '"' + config.hidden_act + '"');
    std::string names, ids;
    for (std::int64_t i = 0; i < config.num_labels; ++i) {
        const char* const comma = i == 0 ? "" : ", ";
        names += fmt::format("{}\"{}\": \"LABEL_{}\"", comma, i, i);
        ids += fmt::format("{}\"LABEL_{}\": {}", comma, i, i);
    }
    out.add("id2label", '{' + names + '}');
    out.add("label2id", '{' + ids + '}');
    return out.text();
}

std::string bert_name(std::string_view name, std::string_view prefix) {
    if (name.starts_with("bert.")) name.remove_prefix(5);
    if (name == "embeddings.position_ids") return {};
    std::string result;
    if (name.starts_with("embeddings.") || name.starts_with("encoder.") || name.starts_with("pooler."))
        result = prefix;
    const std::size_t dot = name.rfind('.');
    const bool gamma = name.ends_with("LayerNorm.gamma"), beta = name.ends_with("LayerNorm.beta");
    result += gamma || beta ? name.substr(0, dot + 1) : name;
    if (gamma) result += "weight";
    if (beta) result += "bias";
    return result;
}

}  // namespace mezzo::io
