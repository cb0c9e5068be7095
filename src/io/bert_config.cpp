// config.json of Hugging Face BERT models, with the defaults of its BertConfig.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file.h"
#include "io/json.h"
#include "mezzo/io.h"

namespace mezzo::io {

namespace {

using nn::BertConfig;

constexpr std::uint64_t max_config_bytes = 16000000;
// Keeps every product of two sizes, and its bytes, far from overflow.
constexpr std::int64_t max_size = 1 << 24;

struct IntegerField {
    const char* name;
    std::int64_t BertConfig::*value;
    std::int64_t least;
};
constexpr IntegerField integers[] = {
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

struct RealField {
    const char* name;
    double BertConfig::*value;
    bool positive;  // else 0 is allowed
};
constexpr RealField reals[] = {
    {"hidden_dropout_prob", &BertConfig::hidden_dropout_prob, false},
    {"attention_probs_dropout_prob", &BertConfig::attention_probs_dropout_prob, false},
    {"initializer_range", &BertConfig::initializer_range, false},
    {"layer_norm_eps", &BertConfig::layer_norm_eps, true},
};

constexpr const char* activations[] = {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"};

void check_real(const std::string& where, const char* name, double value, bool positive) {
    check((positive ? value > 0 : value >= 0) && value <= 1, ErrorKind::value, where, ": ", name, " is ",
          value, positive ? "; more than 0 and at most 1 is expected" : "; 0 to 1 is expected");
}

template <class Number>
[[noreturn]] void fail_size(const std::string& where, const IntegerField& field, Number value) {
    fail(ErrorKind::value, where, ": ", field.name, " is ", std::to_string(value), "; ", field.least, " to ",
         max_size, " is expected");
}

void check_config(const BertConfig& config, const std::string& where) {
    for (const IntegerField& field : integers) {
        const std::int64_t value = config.*field.value;
        if (value < field.least || value > max_size) fail_size(where, field, value);
    }
    for (const RealField& field : reals) check_real(where, field.name, config.*field.value, field.positive);
    if (config.classifier_dropout) check_real(where, "classifier_dropout", *config.classifier_dropout, false);
    check(config.hidden_size % config.num_attention_heads == 0, ErrorKind::value, where, ": hidden_size ",
          config.hidden_size, " is no multiple of num_attention_heads ", config.num_attention_heads);
    check(config.pad_token_id < config.vocab_size, ErrorKind::value, where, ": pad_token_id ",
          config.pad_token_id, " is not in a vocabulary of ", config.vocab_size);
    const bool known =
        std::find(std::begin(activations), std::end(activations), config.hidden_act) != std::end(activations);
    check(known, ErrorKind::value, where, ": hidden_act is ", shown(config.hidden_act),
          "; gelu, gelu_new, gelu_pytorch_tanh, relu and silu are known");
}

// The fields of one file.
class ConfigReader {
public:
    ConfigReader(const JsonValue& object, const std::string& where) : object_(object), where_(where) {}

    BertConfig read() const {
        check(object_.kind == JsonKind::object, ErrorKind::value, where_, ": the file holds ",
              name(object_.kind), ", not an object");
        expect_text("model_type", "bert");
        expect_text("position_embedding_type", "absolute");
        refuse_decoder();
        BertConfig config;
        for (const IntegerField& field : integers)
            if (const JsonValue* const value = object_.find(field.name))
                config.*field.value = integer(field, *value);
        for (const RealField& field : reals)
            if (const JsonValue* const value = object_.find(field.name))
                config.*field.value = real(field.name, *value);
        if (const JsonValue* const value = given("classifier_dropout"))
            config.classifier_dropout = real("classifier_dropout", *value);
        if (const JsonValue* const value = object_.find("hidden_act")) {
            if (value->kind != JsonKind::string) wrong("hidden_act", *value, "a string");
            config.hidden_act = value->text;
        }
        read_labels(config);
        check_config(config, where_);
        return config;
    }

private:
    // Null counts as missing.
    const JsonValue* given(const char* key) const {
        const JsonValue* const value = object_.find(key);
        return value && value->kind != JsonKind::null ? value : nullptr;
    }
    [[noreturn]] void wrong(const char* key, const JsonValue& value, const char* wanted) const {
        const std::string is = value.kind == JsonKind::string ? shown(value.text)
                               : value.kind == JsonKind::real || value.kind == JsonKind::negative
                                   ? fmt::format("{}", value.number)
                                   : name(value.kind);
        fail(ErrorKind::value, where_, ": ", key, " is ", is, "; ", wanted, " is expected");
    }
    std::int64_t integer(const IntegerField& field, const JsonValue& value) const {
        if (value.kind != JsonKind::natural) wrong(field.name, value, "a whole number");
        if (value.natural > std::uint64_t(max_size)) fail_size(where_, field, value.natural);
        return std::int64_t(value.natural);
    }
    double real(const char* key, const JsonValue& value) const {
        if (value.kind != JsonKind::natural && value.kind != JsonKind::negative &&
            value.kind != JsonKind::real)
            wrong(key, value, "a number");
        return value.number;
    }
    void expect_text(const char* key, const char* wanted) const {
        const JsonValue* const value = given(key);
        if (value && (value->kind != JsonKind::string || value->text != wanted)) wrong(key, *value, wanted);
    }
    void refuse_decoder() const {
        const JsonValue* const value = given("is_decoder");
        if (!value) return;
        if (value->kind != JsonKind::boolean) wrong("is_decoder", *value, "true or false");
        check(!value->flag, ErrorKind::value, where_, ": is_decoder is true; only encoders are read");
    }

    // id2label says how many labels there are, or else label2id.
    void read_labels(BertConfig& config) const {
        const JsonValue* const names = given("id2label");
        const JsonValue* const ids = given("label2id");
        for (const JsonValue* const labels : {names, ids})
            if (labels && labels->kind != JsonKind::object)
                wrong(labels == names ? "id2label" : "label2id", *labels, "an object");
        if (names) check_label_ids(*names);
        if (!names && !ids) return;
        const std::size_t count = (names ? names : ids)->members.size();
        check(!object_.find("num_labels") || config.num_labels == std::int64_t(count), ErrorKind::value,
              where_, ": num_labels is ", config.num_labels, ", but ", names ? "id2label" : "label2id",
              " has ", count, " labels");
        config.num_labels = std::int64_t(count);
    }
    void check_label_ids(const JsonValue& names) const {
        const std::size_t count = names.members.size();
        std::vector<bool> seen(count);
        for (const auto& [key, value] : names.members) {
            std::size_t id = 0;
            for (const char c : key)
                id = c >= '0' && c <= '9' && id <= count ? 10 * id + std::size_t(c - '0') : count;
            if (key.empty() || id >= count || seen[id])
                fail(ErrorKind::value, where_, ": id2label has ", count, " labels, one of them number ",
                     shown(key), "; 0 to ", count - 1, " are expected");
            seen[id] = true;
            if (value.kind != JsonKind::string) wrong("a label of id2label", value, "a string");
        }
    }

    const JsonValue& object_;
    const std::string& where_;
};

BertConfig parse(std::string_view text, const std::string& where) {
    const JsonValue tree = parse_json_tree(text, where);
    return ConfigReader(tree, where).read();
}

}  // namespace

nn::BertConfig parse_bert_config(std::string_view text) { return parse(text, "BERT configuration"); }

nn::BertConfig load_bert_config(const std::string& path) {
    return parse(read_text("BERT configuration", path, max_config_bytes), "BERT configuration: " + path);
}

std::string to_json(const nn::BertConfig& config) {
    check_config(config, "BERT configuration");
    std::string out =
        "{\n  \"architectures\": [\"BertModel\"],\n  \"model_type\": \"bert\",\n"
        "  \"position_embedding_type\": \"absolute\"";
    const auto append = [&](const char* name, const auto& value) {
        out += fmt::format(",\n  \"{}\": {}", name, value);
    };
    for (const IntegerField& field : integers)
        if (field.value != &BertConfig::num_labels) append(field.name, config.*field.value);
    for (const RealField& field : reals) append(field.name, config.*field.value);
    if (config.classifier_dropout) {
        append("classifier_dropout", *config.classifier_dropout);
    } else {
        append("classifier_dropout", "null");
    }
    append("hidden_act", '"' + config.hidden_act + '"');
    std::string names, ids;
    for (std::int64_t i = 0; i < config.num_labels; ++i) {
        const char* const comma = i == 0 ? "" : ", ";
        names += fmt::format("{}\"{}\": \"LABEL_{}\"", comma, i, i);
        ids += fmt::format("{}\"LABEL_{}\": {}", comma, i, i);
    }
    append("id2label", '{' + names + '}');
    append("label2id", '{' + ids + '}');
    return out + "\n}\n";
}

}  // namespace mezzo::io
