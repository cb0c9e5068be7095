#include "bert/setup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <fmt/format.h>
#include <mezzo/data/table.h>
#include <mezzo/io.h>
#include <mezzo/models/bert_config.h>
#include <mezzo/text/tokenizer.h>
#include <mezzo/train/checkpoint.h>

#include "program.h"
#include "training.h"

namespace mz = mezzo;
namespace fs = std::filesystem;

namespace bert {

namespace {

using program::in_range;
using program::not_negative;
using program::positive;

void add_model_options(CLI::App& app, Options& o) {
    app.add_option("--weights", o.weights,
                   "start from these weights: a safetensors file with Hugging Face's names, or a folder with "
                   "model.safetensors, config.json and vocab.txt");
    app.add_option("--vocab", o.vocab, "vocab.txt; default: that of --weights, else learned from the texts");
    app.add_option("--model-config", o.model_config,
                   "config.json; default: that of --weights, else the four sizes below");
    app.add_option("--layers", o.layers, "encoder layers")->transform(positive());
    app.add_option("--hidden", o.hidden, "width")->transform(positive());
    app.add_option("--heads", o.heads, "attention heads; must divide the width")->transform(positive());
    app.add_option("--intermediate", o.intermediate, "width of the feed-forward layers; 0: 4 times the width")
        ->transform(not_negative());
    app.add_option("--vocab-size", o.vocab_size, "of a vocabulary learned from the texts")
        ->transform(in_range<std::int64_t>(300, 1 << 20));
    app.add_option("--max-length", o.max_length, "tokens per text at most")
        ->transform(in_range<std::int64_t>(3, 1 << 20));
    app.add_option("--dropout", o.dropout, "of hidden states, attention and classifier")
        ->transform(in_range(0.0, 0.99));
    app.add_flag("--pooler,!--no-pooler", o.pooler,
                 "classify tanh(dense(first token)) as BERT does, or the first token itself");
}

void add_training_options(CLI::App& app, Options& o) {
    program::add_precision(app, o.precision);
    program::add_states(app, o.states);
    app.add_option("--epochs", o.epochs, "of fine-tuning; 0: none")->transform(not_negative());
    app.add_option("--max-steps", o.max_steps, "end fine-tuning after this many steps; 0: do not")
        ->transform(not_negative());
    app.add_option("--pretrain-epochs", o.pretrain_epochs,
                   "first train by predicting masked tokens, for this many passes over the texts")
        ->transform(not_negative());
    app.add_option("--batch", o.batch, "texts per forward pass, over all ranks")
        ->transform(in_range<std::int64_t>(1, 1 << 20));
    app.add_option("--accumulate", o.accumulate, "forward passes per step")
        ->transform(in_range<std::int64_t>(1, 1 << 20));
    app.add_option("--lr", o.lr,
                   "peak learning rate of fine-tuning (AdamW); 0: 2e-5 with --weights, else 5e-4")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--pretrain-lr", o.pretrain_lr, "peak learning rate of pre-training")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--weight-decay", o.weight_decay, "of all weights but biases and LayerNorm")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--warmup", o.warmup, "share of the steps in which the learning rate rises")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--clip", o.clip, "largest norm of the gradients; 0: do not clip")
        ->transform(in_range(0.0, 1e9));
    program::add_seed(app, o.seed, "of weights, order, masks and dropout");
    app.add_flag("--shard", o.shard,
                 "under mezzo-run, each rank keeps a part of the optimizer's state only; same results");
}

void add_file_options(CLI::App& app, Options& o) {
    app.add_option("--data", o.data,
                   "folder of train_text.txt, train_labels.txt, val_text.txt, val_labels.txt; default: the "
                   "package descriptions of this Debian machine");
    app.add_option("--limit", o.limit, "train on at most this many texts; 0: all")->transform(not_negative());
    app.add_option("--checkpoints", o.checkpoints, "folder for a checkpoint after each epoch");
    app.add_option("--checkpoint-every", o.checkpoint_every,
                   "steps between checkpoints besides the epochs' ends; 0: only there")
        ->transform(not_negative());
    app.add_flag("--resume", o.resume,
                 "go on from the newest of --checkpoints, if there is one; what shapes the training must be "
                 "as it was")
        ->needs("--checkpoints");
    app.add_option("--save", o.save, "write weights, configuration, vocabulary and classes into this folder");
    app.add_option("--predict", o.predict, "at the end, classify the lines of this file");
    app.add_option("--tensorboard", o.tensorboard, "folder for losses and metrics, for TensorBoard");
    app.add_option("--log-every", o.log_every, "steps between progress reports")->transform(positive());
}

constexpr const char* model_files[] = {"model.safetensors", "config.json", "vocab.txt", "classes.txt"};

void make_checkpoint_folder(const Options& o, const char* stage) {
    if (o.checkpoints.empty()) return;
    const std::string folder = o.checkpoints + "/" + stage;
    program::require_folder("--checkpoints", folder);
    if (!o.resume && !mz::training::CheckpointFolder(folder).files().empty())
        throw std::runtime_error(fmt::format(
            "--checkpoints: {}: has checkpoints; go on from them with --resume, or use another folder",
            folder));
}

// Returns a file in the folder of --weights, or "" if there is none.
std::string beside_weights(const Options& o, const char* name) {
    if (o.weights.empty()) return {};
    const fs::path given = o.weights;
    const fs::path file = (fs::is_directory(given) ? given : given.parent_path()) / name;
    return fs::exists(file) ? file.string() : std::string();
}

mz::StateDict read_weights(const Options& o) {
    if (o.weights.empty()) return {};
    if (!fs::exists(o.weights)) throw std::runtime_error("--weights: there is no " + o.weights);
    if (!fs::is_directory(o.weights)) return mz::io::load_state_dict_file(o.weights);
    for (const char* const name : {"model.safetensors", "model.safetensors.index.json"})
        if (const std::string file = beside_weights(o, name); !file.empty())
            return mz::io::load_state_dict_file(file);
    throw std::runtime_error("--weights: " + o.weights + ": holds no model.safetensors");
}

mz::data::WordPiece make_tokenizer(const Options& o, const Corpora& corpora) {
    const std::string path = o.vocab.empty() ? beside_weights(o, "vocab.txt") : o.vocab;
    if (!path.empty()) return mz::data::WordPiece(path);
    if (!o.weights.empty())
        throw std::runtime_error("--weights: " + o.weights + ": no vocab.txt beside it; pass --vocab FILE");
    fmt::print("learning a vocabulary of {} tokens from the texts\n", o.vocab_size);
    return mz::data::WordPiece::from_vocabulary(
        mz::data::learn_wordpiece(corpora.train.texts, {.size = o.vocab_size}));
}

mz::nn::BertConfig make_config(const Options& o, std::int64_t vocab_size) {
    const std::string path = o.model_config.empty() ? beside_weights(o, "config.json") : o.model_config;
    mz::nn::BertConfig config;
    if (!path.empty()) {
        config = mz::io::load_bert_config(path);
        if (config.vocab_size < vocab_size)
            throw std::runtime_error(
                fmt::format("{}: vocab_size {} is less than the {} tokens of the vocabulary", path,
                            config.vocab_size, vocab_size));
    } else if (!o.weights.empty()) {
        throw std::runtime_error("--weights: " + o.weights +
                                 ": no config.json beside it; pass --model-config FILE");
    } else {
        config.vocab_size = vocab_size;
        config.hidden_size = o.hidden;
        config.num_hidden_layers = o.layers;
        config.num_attention_heads = o.heads;
        config.intermediate_size = o.intermediate > 0 ? o.intermediate : 4 * o.hidden;
        config.max_position_embeddings = std::max<std::int64_t>(512, o.max_length);
    }
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = o.dropout;
    config.classifier_dropout.reset();
    if (o.max_length > config.max_position_embeddings)
        throw std::runtime_error(fmt::format("--max-length {} exceeds the model's {} positions", o.max_length,
                                             config.max_position_embeddings));
    return config;
}

// Returns the classes of the data, or those that --save has written in the folder of the weights.
std::vector<std::string> make_classes(const Options& o, const Corpora& corpora) {
    std::vector<std::string> classes = corpora.classes;
    if (const std::string saved = beside_weights(o, "classes.txt"); !saved.empty()) {
        const std::vector<std::string> then = read_lines(saved);
        if (!classes.empty() && then.size() != classes.size())
            throw std::runtime_error(
                fmt::format("{}: {} classes, but the data has {}", saved, then.size(), classes.size()));
        if (classes.empty()) classes = then;
    }
    if (classes.size() < 2)
        throw std::runtime_error(
            "no classes: pass --data FOLDER, or --weights with a folder that --save wrote");
    return classes;
}

std::vector<std::string> vocabulary_of(const mz::data::WordPiece& tokenizer) {
    std::vector<std::string> tokens;
    for (std::int64_t i = 0; i < tokenizer.size(); ++i) tokens.push_back(tokenizer.token(i));
    return tokens;
}

void write_lines(const fs::path& path, const std::vector<std::string>& lines) {
    std::ofstream file(path, std::ios::binary);
    for (const std::string& line : lines) file << line << '\n';
    if (!file.flush()) throw std::runtime_error(path.string() + ": cannot be written");
}

std::string digest_of(const std::vector<std::string>& texts) {
    std::uint64_t digest = program::digest_of("");
    for (const std::string& text : texts) digest = program::digest_of(text + '\0', digest);
    return fmt::format("{:016x}", digest);
}

std::string digest_of(const Corpus& corpus) {
    std::vector<std::string> texts = corpus.texts;
    for (const std::int64_t label : corpus.labels) texts.push_back(std::to_string(label));
    return digest_of(texts);
}

std::string digest_of(const mz::StateDict& state) {
    std::vector<std::string> texts;
    for (const auto& [name, tensor] : state) {
        const std::vector<double> values = tensor.to_vector<double>();
        texts.push_back(name);
        texts.emplace_back(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
    }
    return digest_of(texts);
}

}  // namespace

int parse_options(int argc, char** argv, Options& o) {
    CLI::App app{"Trains a BERT-style text classifier."};
    app.option_defaults()->always_capture_default();
    add_file_options(app, o);
    add_model_options(app, o);
    add_training_options(app, o);
    std::string device;
    int threads = mezzo::num_threads();
    program::add_device(app, device);
    program::add_threads(app, threads);
    app.callback([&o] {
        if (o.predict.empty() && o.save.empty() && o.epochs == 0 && o.pretrain_epochs == 0)
            throw CLI::ValidationError("--epochs",
                                       "0, and nothing else to do; pass --predict FILE or --save FOLDER");
    });
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    o.device_given = !device.empty();
    if (o.device_given) o.device = mezzo::parse_device(device.c_str());
    if (app.count("--threads") > 0) o.threads = threads;
    if (o.lr == 0) o.lr = o.weights.empty() ? 5e-4 : 2e-5;
    return -1;
}

void make_folders(const Options& o) {
    if (!o.tensorboard.empty()) program::require_folder("--tensorboard", o.tensorboard);
    if (!o.save.empty()) {
        program::require_folder("--save", o.save);
        for (const char* const name : model_files)
            if (fs::is_directory(fs::path(o.save) / name))
                throw std::runtime_error(fmt::format("--save: {}/{}: is a folder, not a file", o.save, name));
    }
    if (o.pretrain_epochs > 0) make_checkpoint_folder(o, pretraining);
    if (o.epochs > 0) make_checkpoint_folder(o, finetuning);
}

Inputs read_inputs(const Options& o) {
    std::vector<std::string> to_predict;
    if (!o.predict.empty()) to_predict = read_lines(o.predict);
    if (!o.model_config.empty()) static_cast<void>(mz::io::load_bert_config(o.model_config));
    mz::StateDict weights = read_weights(o);
    Corpora corpora;
    if (!o.data.empty())
        corpora = read_text_folder(o.data, std::size_t(o.limit));
    else if (o.epochs > 0 || o.pretrain_epochs > 0 || o.weights.empty())
        corpora = read_package_descriptions(std::size_t(o.limit));
    std::vector<std::string> classes = make_classes(o, corpora);
    mz::data::WordPiece tokenizer = make_tokenizer(o, corpora);
    mz::nn::BertConfig config = make_config(o, tokenizer.size());
    config.pad_token_id = tokenizer.pad_id();
    config.num_labels = classes.size() == 2 ? 1 : std::int64_t(classes.size());
    return {std::move(corpora), std::move(classes), std::move(tokenizer),
            std::move(config),  std::move(weights), std::move(to_predict)};
}

mz::io::Metadata settings_of(const Options& o, const Inputs& in) {
    const mz::nn::BertConfig& c = in.config;
    const auto shown = [](const auto& value) { return fmt::format("{}", value); };
    return {{"--precision", o.precision},
            {"--states", o.states},
            {"--seed", shown(o.seed)},
            {"--batch", shown(o.batch)},
            {"--accumulate", shown(o.accumulate)},
            {"--epochs", shown(o.epochs)},
            {"--pretrain-epochs", shown(o.pretrain_epochs)},
            {"--max-steps", shown(o.max_steps)},
            {"--lr", shown(o.lr)},
            {"--pretrain-lr", shown(o.pretrain_lr)},
            {"--weight-decay", shown(o.weight_decay)},
            {"--warmup", shown(o.warmup)},
            {"--clip", shown(o.clip)},
            {"--dropout", shown(o.dropout)},
            {"--max-length", shown(o.max_length)},
            {"--pooler", shown(o.pooler)},
            {"--layers", shown(c.num_hidden_layers)},
            {"--hidden", shown(c.hidden_size)},
            {"--heads", shown(c.num_attention_heads)},
            {"--intermediate", shown(c.intermediate_size)},
            {"the rest of the configuration",
             fmt::format("{}, {} positions, {} token types, vocabulary of {}, eps {}, initializer_range {}",
                         c.hidden_act, c.max_position_embeddings, c.type_vocab_size, c.vocab_size,
                         c.layer_norm_eps, c.initializer_range)},
            {"training data",
             fmt::format("{} texts, digest {}", in.corpora.train.texts.size(), digest_of(in.corpora.train))},
            {"classes", fmt::format("{}, digest {}", in.classes.size(), digest_of(in.classes))},
            {"vocabulary",
             fmt::format("{}, digest {}", in.tokenizer.size(), digest_of(vocabulary_of(in.tokenizer)))},
            {"--weights", fmt::format("{} tensors, digest {}", in.weights.size(), digest_of(in.weights))}};
}

void save_model(const std::string& folder, const Inputs& inputs, const mz::nn::Module& model) {
    const fs::path path = folder;
    mz::io::save_safetensors((path / model_files[0]).string(), model.state_dict());
    write_lines(path / model_files[1], {mz::io::to_json(inputs.config)});
    write_lines(path / model_files[2], vocabulary_of(inputs.tokenizer));
    write_lines(path / model_files[3], inputs.classes);
}

}  // namespace bert
