#include "models.h"

#include <charconv>
#include <filesystem>
#include <system_error>

#include "mezzo/models/bert.h"
#include "mezzo/models/resnet.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"

namespace mezzo::python {

namespace {

namespace fs = std::filesystem;

void refuse_texts(const Tensor& mask, const Tensor& types) {
    check(!mask.defined() && !types.defined(), ErrorKind::value,
          "Model: attention_mask and token_type_ids are for models that read texts");
}

template <class Net> class OfNumbers final : public Model {
public:
    OfNumbers(Net net, const StateDict& state) : net_(std::move(net)) {
        net_.load_state_dict(state);
        net_.eval();
    }
    Tensor run(const Tensor& x, const Tensor& mask, const Tensor& types) const override {
        refuse_texts(mask, types);
        return net_(x.to(float32));
    }
    nn::Module& module() override { return net_; }

private:
    Net net_;
};

class OfTexts final : public Model {
public:
    OfTexts(const nn::BertConfig& config, const StateDict& state)
        : net_(config, {.pooler = state.contains("bert.pooler.dense.weight")}) {
        io::load_weights(
            net_, state,
            {.rename = [](const std::string& name) { return io::bert_name(name, "bert."); }, .strict = true});
        net_.eval();
    }
    Tensor run(const Tensor& x, const Tensor& mask, const Tensor& types) const override {
        nn::BertInputs also;
        if (mask.defined()) also.attention_mask = mask.dtype() == boolean ? mask : ne(mask, 0);
        if (types.defined()) also.token_type_ids = types.to(int64);
        return net_(x.to(int64), also);
    }
    nn::Module& module() override { return net_; }

private:
    nn::BertForSequenceClassification net_;
};

std::string value_of(const io::Metadata& metadata, std::string_view name) {
    for (const auto& [key, value] : metadata)
        if (key == name) return value;
    return {};
}

// Throws Error(value) for a text model that is not a BERT with a classifier.
void check_classifier(const std::string& path, const StateDict& state) {
    std::string known, other;
    for (const auto& [name, value] : state) {
        for (const char* const prefix : {"roberta.", "distilbert.", "electra.", "albert.", "deberta."})
            if (name.starts_with(prefix)) other = prefix;
        if (name.starts_with("bert.") || name.starts_with("embeddings.word_embeddings.")) known = name;
    }
    if (!other.empty()) {
        other.pop_back();
        fail(ErrorKind::value, "load: ", path, " is a model of the type ", other,
             ", which is not read; BERT with a classifier is, and other models go through ONNX");
    }
    const Tensor* const weight = state.find("classifier.weight");
    check(known.empty() || weight, ErrorKind::value, "load: ", path,
          " is a BERT without a classifier: it has ", known,
          " and no classifier.weight; models for the classification of texts are read");
    check(!weight || weight->dim() == 2, ErrorKind::value, "load: ", path, " has classifier.weight ",
          weight ? weight->shape() : Shape{}, "; [labels, hidden] is expected");
}

// Returns the safetensors file of a folder.
fs::path file_of(const fs::path& folder) {
    std::error_code unknown;
    const fs::path whole = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
    if (!fs::exists(whole, unknown) && fs::exists(index, unknown)) return index;
    return whole;
}

nn::ResNetConfig resnet_of(const std::string& model, const io::Metadata& metadata, const StateDict& state) {
    std::int64_t depth = 0;
    std::from_chars(model.data() + 6, model.data() + model.size(), depth);
    nn::ResNetConfig config = nn::resnet_config(depth);
    config.in_channels = state.at("conv1.weight").size(1);
    config.num_classes = state.at("fc.weight").size(0);
    const std::string stem = value_of(metadata, "stem"), shortcut = value_of(metadata, "shortcut");
    if (!stem.empty()) config.stem = stem == "cifar" ? nn::ResNetStem::cifar : nn::ResNetStem::imagenet;
    if (!shortcut.empty())
        config.shortcut =
            shortcut == "padding" ? nn::ResNetShortcut::padding : nn::ResNetShortcut::projection;
    return config;
}

void add_activation(nn::Sequential& net, const std::string& name) {
    if (name == "relu") return net.push_back(nn::ReLU());
    if (name == "gelu") return net.push_back(nn::GELU());
    if (name == "tanh") return net.push_back(nn::Tanh());
    check(name == "silu", ErrorKind::value, "load: activation is ", name,
          "; known are relu, gelu, tanh and silu");
    net.push_back(nn::SiLU());
}

// Makes linear layers where there are weights. The modules between them have no weights: activations, and a
// Flatten before the first layer.
nn::Sequential mlp_of(const std::string& path, const StateDict& state, const std::string& activation) {
    std::size_t layers = 0;
    for (const auto& [name, value] : state) {
        std::size_t place = 0;
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), place);
        const std::string_view field(end, std::size_t(name.data() + name.size() - end));
        const bool known =
            error == std::errc() && place < 1000 &&
            ((field == ".weight" && value.dim() == 2) || (field == ".bias" && value.dim() == 1));
        check(known, ErrorKind::value, "load: ", path, " has ", name, " ", value.shape(),
              ", which is no part of a BERT with a config.json, of a ResNet with its metadata, or of an MLP");
        layers = std::max(layers, place + 1);
    }
    check(layers > 0, ErrorKind::value, "load: ", path, " has no tensors, and so no model");
    nn::Sequential net;
    bool begun = false;
    for (std::size_t i = 0; i < layers; ++i) {
        const std::string place = std::to_string(i);
        if (const Tensor* const weight = state.find(place + ".weight")) {
            net.push_back(
                nn::Linear(weight->size(1), weight->size(0), {.bias = state.contains(place + ".bias")}));
            begun = true;
        } else if (begun) {
            add_activation(net, activation);
        } else {
            net.push_back(nn::Flatten());
        }
    }
    return net;
}

}  // namespace

std::unique_ptr<Model> load_model(const fs::path& given, const fs::path& config_given,
                                  const std::string& activation) {
    std::error_code unknown;  // a file that cannot be examined is an error when it is opened
    const std::string path = (fs::is_directory(given, unknown) ? file_of(given) : given).string();
    const bool sharded = path.ends_with(".json");
    const io::Metadata metadata = sharded ? io::Metadata() : io::SafeTensors(path).metadata();
    const StateDict state = io::load_state_dict_file(path);
    const std::string model = value_of(metadata, "model");
    if (model.starts_with("resnet") && config_given.empty())
        return std::make_unique<OfNumbers<nn::ResNet>>(nn::ResNet(resnet_of(model, metadata, state)), state);
    const std::string beside = (fs::path(path).parent_path() / "config.json").string();
    const bool texts = state.contains("classifier.weight");
    check_classifier(path, state);
    const std::string config = !config_given.empty()                  ? config_given.string()
                               : texts && fs::exists(beside, unknown) ? beside
                                                                      : "";
    if (config.empty())
        return std::make_unique<OfNumbers<nn::Sequential>>(mlp_of(path, state, activation), state);
    nn::BertConfig bert = io::load_bert_config(config);
    check(texts, ErrorKind::value, "load: ", path,
          " has no classifier.weight; a config.json is for a BERT with a classifier");
    bert.num_labels = state.at("classifier.weight").size(0);
    return std::make_unique<OfTexts>(bert, state);
}

}  // namespace mezzo::python
