// Trains a BERT-style text classifier in float32, bfloat16 or float16: from published weights, from scratch,
// or after pre-training on masked tokens; under mezzo-run on several ranks. samples/bert holds its parts.
#include <fmt/format.h>

#include <algorithm>

#include "bert/finetune.h"
#include "bert/pretrain.h"
#include "bert/trainer.h"
#include "program.h"
#include "training/ranks.h"

namespace mz = mezzo;
using namespace bert;

namespace {

// Loads published weights with Hugging Face's names. Parameters that are not in the file keep their initial
// values and are listed.
void load(const Setup& setup, const mz::StateDict& weights, Classifier& model) {
    const mz::io::LoadReport report = mz::io::load_weights(
        model, weights, {.rename = [](const std::string& name) { return mz::io::bert_name(name, "bert."); }});
    fmt::print("{}\n{}\n", setup.weights, report.to_string());
    if (report.loaded.empty()) throw std::runtime_error(setup.weights + ": holds no weights of this model");
}

// Loads the initial weights, if there are any, and sets the settings that checkpoints store.
void take_weights(const Options& options, Setup& setup, Classifier& model) {
    mz::StateDict weights;
    if (!setup.weights.empty()) {
        weights = mz::io::load_state_dict_file(setup.weights);
        load(setup, weights, model);
    }
    if (!options.checkpoint.empty()) setup.settings = settings_of(options, setup, weights);
}

// Gives the classifier the encoder of a pre-trained language model.
void take_encoder(const mz::nn::BertForMaskedLM& language_model, Classifier& model) {
    mz::io::load_weights(model.bert, language_model.bert.state_dict());
}

void print_header(const Options& options, const Setup& setup, const Classifier& model) {
    std::int64_t parameters = 0;
    for (const mz::Tensor& p : model.parameters()) parameters += p.numel();
    const mz::nn::BertConfig& c = setup.config;
    fmt::print("BERT L-{} H-{} A-{}, {:.1f} M parameters, {} tokens, {}, batch {} x {}, seed {}\n{}\n",
               c.num_hidden_layers, c.hidden_size, c.num_attention_heads, double(parameters) * 1e-6,
               setup.tokenizer.size(), options.precision, options.batch, options.accumulate, options.seed,
               mz::hardware_name(options.device));
    if (setup.group.size() > 1) fmt::print("{} ranks share each batch\n", setup.group.size());
}

// Returns the exit code.
int run(Options& options) {
    const mz::distributed::Group group = training::join_ranks(options.threads);
    if (!options.device_given) options.device = group.device();
    options.progress = options.progress && group.leader();
    mz::distributed::manual_seed(group, options.seed);
    Setup setup = make_setup(options, group);
    const Samples train = tokenize(setup.corpora.train, setup.tokenizer, options.max_length),
                  validation = tokenize(setup.corpora.validation, setup.tokenizer, options.max_length);
    Classifier model(setup.config, {.pooler = options.pooler});
    model.to(options.device);
    take_weights(options, setup, model);
    const std::int64_t first_stage = stage_to_resume(options, group, setup.settings);
    print_header(options, setup, model);
    if (options.pretrain_epochs > 0 && first_stage == 0) {
        mz::nn::BertForMaskedLM language_model(setup.config);
        language_model.to(options.device);
        if (!setup.weights.empty()) mz::io::load_weights(language_model.bert, model.bert.state_dict());
        if (!pretrain(options, setup, train, language_model)) return training::exit_code_when_stopped();
        take_encoder(language_model, model);
    }
    if (options.epochs > 0 && !finetune(options, setup, train, validation, model))
        return training::exit_code_when_stopped();
    if (!group.leader()) return 0;
    if (!options.save.empty()) save_model(options.save, setup, model);
    if (!options.predict.empty()) predict_file(options, setup, model);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bert_classifier", [&] {
        Options options;
        const int code = parse_options(argc, argv, options);
        return code < 0 ? run(options) : code;
    });
}
