#include "bert/setup.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <fmt/format.h>

#include "bert/places.h"

namespace mz = mezzo;
namespace fs = std::filesystem;

namespace bert {

namespace {

// Returns the file of --weights, or the usual file in the folder of --weights.
std::string weights_file(const Options& options) {
    if (!options.weights.empty() && !fs::exists(options.weights))
        throw std::runtime_error("--weights: there is no " + options.weights);
    if (options.weights.empty() || !fs::is_directory(options.weights)) return options.weights;
    const fs::path folder = options.weights;
    for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
        if (fs::exists(folder / name)) return (folder / name).string();
    throw std::runtime_error(options.weights + ": holds no model.safetensors");
}

// Returns a file in the folder of the weights, or "" if there is none.
std::string beside_weights(const Options& options, const char* name) {
    if (options.weights.empty()) return {};
    const fs::path given = options.weights;
    const fs::path file = (fs::is_directory(given) ? given : given.parent_path()) / name;
    return fs::exists(file) ? file.string() : std::string();
}

std::vector<std::string> vocabulary_of(const mz::data::WordPiece& tokenizer) {
    std::vector<std::string> tokens;
    for (std::int64_t i = 0; i < tokenizer.size(); ++i) tokens.push_back(tokenizer.token(i));
    return tokens;
}

mz::data::WordPiece make_tokenizer(const Options& options, const Corpora& corpora) {
    const std::string path = options.vocab.empty() ? beside_weights(options, "vocab.txt") : options.vocab;
    if (!path.empty()) return mz::data::WordPiece(path);
    if (!options.weights.empty())
        throw std::runtime_error(options.weights + ": no vocab.txt beside it; pass --vocab FILE");
    fmt::print("learning a vocabulary of {} tokens from the texts\n", options.vocab_size);
    return mz::data::WordPiece::from_vocabulary(
        mz::data::learn_wordpiece(corpora.train.texts, {.size = options.vocab_size}));
}

mz::nn::BertConfig make_config(const Options& options, std::int64_t vocab_size) {
    const std::string path =
        options.model_config.empty() ? beside_weights(options, "config.json") : options.model_config;
    mz::nn::BertConfig config;
    if (!path.empty()) {
        config = mz::io::load_bert_config(path);
        if (config.vocab_size < vocab_size)
            throw std::runtime_error(
                fmt::format("{}: vocab_size {} is less than the {} tokens of the vocabulary", path,
                            config.vocab_size, vocab_size));
    } else if (!options.weights.empty()) {
        throw std::runtime_error(options.weights + ": no config.json beside it; pass --model-config FILE");
    } else {
        config.vocab_size = vocab_size;
        config.hidden_size = options.hidden;
        config.num_hidden_layers = options.layers;
        config.num_attention_heads = options.heads;
        config.intermediate_size = options.intermediate > 0 ? options.intermediate : 4 * options.hidden;
        config.max_position_embeddings = std::max<std::int64_t>(512, options.max_length);
    }
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = options.dropout;
    config.classifier_dropout.reset();
    if (options.max_length > config.max_position_embeddings)
        throw std::runtime_error(fmt::format("--max-length {} exceeds the model's {} positions",
                                             options.max_length, config.max_position_embeddings));
    return config;
}

void write_lines(const fs::path& path, const std::vector<std::string>& lines) {
    std::ofstream file(path, std::ios::binary);
    for (const std::string& line : lines) file << line << '\n';
    if (!file.flush()) throw std::runtime_error(path.string() + ": cannot be written");
}

}  // namespace

Setup make_setup(const Options& options, const mz::distributed::Group& group) {
    // Fast checks come first.
    if (group.leader()) check_places(options);
    std::vector<std::string> to_predict;
    if (!options.predict.empty()) to_predict = read_lines(options.predict);
    std::string weights = weights_file(options);
    if (weights.ends_with(".safetensors")) mz::io::SafeTensors header(weights);
    const bool trains = options.epochs > 0 || options.pretrain_epochs > 0;
    Corpora corpora;
    if (!options.data.empty())
        corpora = read_text_folder(options.data);
    else if (trains || options.weights.empty())
        corpora = read_package_descriptions(std::size_t(options.limit));
    if (const auto limit = std::size_t(options.limit); limit > 0 && corpora.train.texts.size() > limit) {
        corpora.train.texts.resize(limit);
        corpora.train.labels.resize(limit);
    }
    std::vector<std::string> classes = corpora.classes;
    const std::string saved = beside_weights(options, "classes.txt");
    if (!saved.empty()) {
        const std::vector<std::string> then = read_lines(saved);
        if (!classes.empty() && then.size() != classes.size())
            throw std::runtime_error(
                fmt::format("{}: {} classes, but the data has {}", saved, then.size(), classes.size()));
        if (classes.empty()) classes = then;
    }
    if (classes.size() < 2)
        throw std::runtime_error(
            "no classes: pass --data FOLDER, or --weights with a folder that --save wrote");
    const mz::data::WordPiece tokenizer = make_tokenizer(options, corpora);
    mz::nn::BertConfig config = make_config(options, tokenizer.size());
    config.pad_token_id = tokenizer.pad_id();
    config.num_labels = classes.size() == 2 ? 1 : std::int64_t(classes.size());
    return {group,  std::move(corpora), tokenizer,          vocabulary_of(tokenizer),
            config, std::move(classes), std::move(weights), std::move(to_predict)};
}

void save_model(const std::string& folder, const Setup& setup, const mz::nn::Module& model) {
    const fs::path path = folder;
    mz::io::save_safetensors((path / "model.safetensors").string(), model.state_dict());
    write_lines(path / "config.json", {mz::io::to_json(setup.config)});
    write_lines(path / "vocab.txt", setup.vocabulary);
    write_lines(path / "classes.txt", setup.classes);
}

}  // namespace bert
