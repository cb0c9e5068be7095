// Trains a text classifier, BERT (Devlin et al., arXiv 1810.04805), in float32, bfloat16 or float16.
//
// Model:   a small BERT from scratch (2 layers of width 128), or published weights: --weights FOLDER. With
//          --pretrain-epochs N it first learns to predict masked tokens.
// Data:    descriptions of Debian packages, whose class is the package's section; or --data FOLDER.
// Time:    10 s on one core for bert_classifier --limit 8000 --epochs 2 --threads 1
// Look at: accuracy on the validation texts after each epoch: 35 % and 47 % of 43 classes, about as much
//          with --precision bf16 and fp16. With --checkpoints run, Ctrl-C saves the training, and --resume
//          continues it bit for bit. mezzo-run -n 2 bert_classifier trains on two ranks.
// Code:    train() runs both trainings; bert/texts.cpp reads texts, bert/setup.cpp options and model files.
#include <fmt/format.h>
#include <mezzo/data/sampler.h>
#include <mezzo/distributed/data_parallel.h>
#include <mezzo/distributed/group.h>
#include <mezzo/distributed/state.h>
#include <mezzo/eval_mode.h>
#include <mezzo/mezzo.h>
#include <mezzo/models/bert.h>
#include <mezzo/models/bert_config.h>
#include <mezzo/text/tokenizer.h>
#include <mezzo/train/checkpoint.h>
#include <mezzo/train/progress.h>
#include <mezzo/train/stop_signals.h>
#include <mezzo/train/trainer.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>

#include "bert/setup.h"
#include "bert/texts.h"
#include "program.h"
#include "training.h"

namespace mz = mezzo;
using namespace bert;
using Classifier = mz::nn::BertForSequenceClassification;

namespace {

struct Run {
    const Options& options;
    mz::distributed::Group group;
    Inputs inputs;
    mz::io::Metadata settings = {};  // that must be the same when the training is resumed

    bool binary() const { return inputs.classes.size() == 2; }  // one logit instead of two
};

struct Stage {
    const char* name;
    std::int64_t epochs = 1, max_steps = 0;
    double lr = 1e-3;
    std::optional<mz::autograd::Callback<mz::io::Metrics()>> evaluate = {};
};

// Weight decay for matrices; none for biases and LayerNorm.
std::vector<mz::optim::AdamWGroup> parameter_groups(const Options& o, double lr,
                                                    const mz::nn::Module& model) {
    mz::optim::AdamWOptions decayed{
        .lr = lr, .weight_decay = o.weight_decay, .states = program::state_precision(o.states)};
    mz::optim::AdamWOptions plain = decayed;
    plain.weight_decay = 0;
    std::vector<mz::optim::AdamWGroup> groups{{.options = decayed}, {.options = plain}};
    for (const auto& named : model.named_parameters()) {
        const bool undecayed = named.first.ends_with("bias") || named.first.ends_with("LayerNorm.weight");
        groups[undecayed ? 1 : 0].named_params.push_back(named);
    }
    return groups;
}

// Makes batches of all texts once per epoch. Texts of a step have similar lengths, so that little is padded;
// they are sorted within at most a quarter of the texts, so that batches still differ between epochs.
Loader make_loader(const Run& run, const std::vector<Sample>& samples) {
    const Options& o = run.options;
    std::vector<std::int64_t> lengths;
    for (const Sample& sample : samples) lengths.push_back(sample.tokens.size());
    const std::int64_t step = o.batch * o.accumulate, quarter = std::int64_t(samples.size()) / (4 * step);
    const mz::data::LengthBucketSampler sampler(
        lengths,
        {.batch_size = step, .bucket_batches = std::clamp<std::int64_t>(quarter, 1, 50), .seed = o.seed});
    return Loader(Texts{samples}, Collate{run.group.shard(), run.inputs.tokenizer.pad_id()},
                  {.batch_size = o.batch, .sampler = sampler});
}

void print_epoch(const char* stage, const mz::training::TrainingStatus& now) {
    fmt::print("{} epoch {}, step {}: train loss {:.4f}", stage, now.epoch, now.step, now.loss);
    for (const auto& [name, value] : now.metrics) fmt::print(", validation {} {:.2f} %", name, 100 * value);
    fmt::print("\n");
    std::fflush(stdout);
}

// Trains one stage, loss(batch) being this rank's part of the batch's loss. Returns false if a signal has
// ended it.
template <class Loss>
bool train(const Run& run, const Stage& stage, mz::nn::Module& model, Loader& loader, const Loss& loss) {
    const Options& o = run.options;
    mz::distributed::DataParallel parallel(model, run.group);
    mz::optim::AdamW optimizer(parameter_groups(o, stage.lr, model));
    if (o.shard) mz::distributed::shard(optimizer, parallel);
    const std::int64_t each = (loader.size() + o.accumulate - 1) / o.accumulate, all = each * stage.epochs,
                       steps = stage.max_steps > 0 ? std::min(all, stage.max_steps) : all;
    mz::optim::LinearWarmup schedule(
        optimizer,
        {.warmup_steps = std::min(std::int64_t(o.warmup * double(steps)), steps - 1), .total_steps = steps});
    mz::training::ProgressBar bar(stderr, {.label = stage.name});
    std::optional<mz::io::SummaryWriter> log;
    if (!o.tensorboard.empty() && run.group.leader()) log.emplace(o.tensorboard + "/" + stage.name);

    mz::training::TrainerOptions options{
        .epochs = stage.epochs,
        .max_steps = stage.max_steps,
        .precision = program::trainer_precision(o.precision),
        .fp8 = {.least_size = 16},
        .accumulate = o.accumulate,
        .max_norm = o.clip,
        .scheduler = &schedule,
        .parallel = &parallel,
        .evaluate = stage.evaluate,
        .log_every = o.log_every,
        .progress = run.group.leader() ? &bar : nullptr,
        .checkpoints = o.checkpoints.empty() ? "" : o.checkpoints + "/" + stage.name,
        .checkpoint_every = o.checkpoint_every,
        .resume = o.resume,
        .settings = run.settings};
    if (log) options.logs = {&*log};
    options.on_start = [&](const mz::training::TrainingStatus& now) {
        if (now.step > 0)
            fmt::print("resumed {} at epoch {}, step {}\n", stage.name, now.epoch + 1, now.step);
    };
    options.on_epoch = [&](const mz::training::TrainingStatus& now) {
        bar.end_line();
        print_epoch(stage.name, now);
    };
    mz::training::Trainer trainer(model, optimizer, options);
    if (trainer.fit(loader, loss) != mz::training::Ended::stopped) return true;
    fmt::print("stopped by a signal after step {} of {}{}\n", trainer.status().step, stage.name,
               o.checkpoints.empty() ? "" : "; --resume goes on from " + o.checkpoints);
    return false;
}

// Trains a masked language model on the texts, from which the classifier takes the encoder.
bool pretrain(const Run& run, const std::vector<Sample>& samples, Classifier& model) {
    const Options& o = run.options;
    const mz::data::WordPiece& tokenizer = run.inputs.tokenizer;
    if (tokenizer.mask_id() < 0)
        throw std::runtime_error("--pretrain-epochs: the vocabulary has no [MASK]; pass another --vocab");
    mz::nn::BertForMaskedLM language_model(run.inputs.config);
    language_model.to(o.device);
    if (!o.weights.empty()) mz::io::load_weights(language_model.bert, model.bert.state_dict());
    fmt::print("\n{} on masked tokens: {} texts\n", pretraining, samples.size());
    Loader loader = make_loader(run, samples);
    const auto loss = [&](const Batch& batch) {
        const MaskedBatch masked = mask_tokens(batch, tokenizer, o.seed, loader.position().epoch);
        const mz::Tensor mean = language_model.loss(
            masked.ids.to(o.device),
            {.positions = masked.masked.positions.to(o.device), .labels = masked.masked.labels.to(o.device)},
            {.attention_mask = batch.tokens.attention_mask.to(o.device)});
        return mean * run.group.weight(masked.count).to(o.device);  // ranks have different numbers of masks
    };
    const Stage stage{.name = pretraining, .epochs = o.pretrain_epochs, .lr = o.pretrain_lr};
    if (!train(run, stage, language_model, loader, loss)) return false;
    mz::io::load_weights(model.bert, language_model.bert.state_dict());
    return true;
}

mz::Tensor logits_of(const Run& run, const Classifier& model, const Batch& batch) {
    const mz::Device device = run.options.device;
    return model(batch.tokens.input_ids.to(device),
                 {.attention_mask = batch.tokens.attention_mask.to(device),
                  .token_type_ids = batch.tokens.token_type_ids.to(device)});
}

// Returns the probabilities of all classes, float32 [n, classes], of the samples first to first + count.
mz::Tensor probabilities(const Run& run, const Classifier& model, const std::vector<Sample>& samples,
                         std::int64_t first, std::int64_t count) {
    mz::Tensors parts{mz::zeros({0, std::int64_t(run.inputs.classes.size())})};
    for (std::int64_t i = first; i < first + count; i += 64) {
        std::vector<const Sample*> rows;
        for (std::int64_t k = i; k < std::min(i + 64, first + count); ++k)
            rows.push_back(&samples[std::size_t(k)]);
        const Batch batch = make_batch(std::move(rows), run.inputs.tokenizer.pad_id());
        const mz::Tensor logits = logits_of(run, model, batch).to(mz::cpu_device).to(mz::float32);
        const mz::Tensor p = run.binary() ? mz::sigmoid(logits) : mz::softmax(logits);
        parts.push_back(run.binary() ? mz::cat({1 - p, p}, -1) : p);
    }
    return mz::cat(parts, 0);
}

// Returns accuracy and macro-F1, the mean over the classes of 2 TP / (2 TP + FP + FN). Each rank classifies a
// part of the texts.
mz::io::Metrics evaluate(const Run& run, const Classifier& model, const std::vector<Sample>& samples) {
    const mz::data::ShardRows mine = run.group.shard().slice(std::int64_t(samples.size()));
    const std::int64_t count = mine.weight > 0 ? mine.count : 0;  // 0: more ranks than texts
    const std::vector<std::int64_t> predicted =
        mz::argmax(probabilities(run, model, samples, mine.first, count), 1).to_vector<std::int64_t>();
    const std::size_t classes = run.inputs.classes.size();
    std::vector<std::int64_t> counts(3 * classes, 0);  // right, predicted and actual texts of each class
    for (std::size_t i = 0; i < predicted.size(); ++i) {
        const std::int64_t actual = samples[std::size_t(mine.first) + i].label;
        if (predicted[i] == actual) ++counts[std::size_t(actual)];
        ++counts[classes + std::size_t(predicted[i])];
        ++counts[2 * classes + std::size_t(actual)];
    }
    const mz::Tensor sums = mz::Tensor::from(counts, {std::int64_t(counts.size())});
    run.group.all_reduce_(sums);
    counts = sums.to_vector<std::int64_t>();
    double f1 = 0, right = 0;
    for (std::size_t c = 0; c < classes; ++c) {
        f1 += 2 * double(counts[c]) /
              double(std::max<std::int64_t>(1, counts[classes + c] + counts[2 * classes + c]));
        right += double(counts[c]);
    }
    return {{"macro-F1", f1 / double(classes)}, {"accuracy", right / double(samples.size())}};
}

bool finetune(const Run& run, const std::vector<Sample>& samples, const std::vector<Sample>& validation,
              Classifier& model) {
    const Options& o = run.options;
    fmt::print("\n{}: {} texts, {} for validation, {} classes\n", finetuning, samples.size(),
               validation.size(), run.inputs.classes.size());
    Loader loader = make_loader(run, samples);
    const auto loss = [&](const Batch& batch) {
        const mz::Tensor logits = logits_of(run, model, batch), labels = batch.labels.to(o.device);
        const mz::Tensor mean =
            run.binary() ? mz::binary_cross_entropy_with_logits(logits.squeeze(-1), labels.to(mz::float32))
                         : mz::cross_entropy(logits, labels);
        return mean * batch.share;
    };
    Stage stage{.name = finetuning, .epochs = o.epochs, .max_steps = o.max_steps, .lr = o.lr};
    stage.evaluate = [&] { return evaluate(run, model, validation); };
    return train(run, stage, model, loader, loss);
}

// Prints class, probability and text of each line of --predict.
void predict(const Run& run, Classifier& model) {
    const mz::NoGrad no_grad;
    const mz::amp::Autocast scope(program::autocast(run.options.precision));
    const mz::nn::EvalMode evaluating(model);
    const std::vector<std::string>& texts = run.inputs.to_predict;
    const std::vector<Sample> samples = tokenize({texts, {}}, run.inputs.tokenizer, run.options.max_length);
    const mz::Tensor p = probabilities(run, model, samples, 0, std::int64_t(samples.size()));
    const std::vector<double> values = p.to_vector<double>();
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const auto first = values.begin() + std::ptrdiff_t(i * run.inputs.classes.size());
        const auto best = std::max_element(first, first + std::ptrdiff_t(run.inputs.classes.size()));
        fmt::print("{}\t{:.4f}\t{}\n", run.inputs.classes[std::size_t(best - first)], *best, texts[i]);
    }
}

// Loads the weights of --weights. Parameters that the file lacks keep their initial values and are listed.
void load_weights(const Run& run, Classifier& model) {
    if (run.inputs.weights.empty()) return;
    const mz::io::LoadReport report = mz::io::load_weights(
        model, run.inputs.weights,
        {.rename = [](const std::string& name) { return mz::io::bert_name(name, "bert."); }});
    fmt::print("{}\n{}\n", run.options.weights, report.to_string());
    if (report.loaded.empty())
        throw std::runtime_error("--weights: " + run.options.weights + ": holds no weights of this model");
}

void print_header(const Run& run, const Classifier& model) {
    const Options& o = run.options;
    const mz::nn::BertConfig& c = run.inputs.config;
    fmt::print("BERT L-{} H-{} A-{}, {:.1f} M parameters, {} tokens, {}, batch {} x {}, seed {}\n{}\n",
               c.num_hidden_layers, c.hidden_size, c.num_attention_heads,
               double(model.num_parameters()) * 1e-6, run.inputs.tokenizer.size(), o.precision, o.batch,
               o.accumulate, o.seed, mz::hardware_name(o.device));
    if (run.group.size() > 1) fmt::print("{} ranks share each batch\n", run.group.size());
}

// Trains both stages. Returns false if a signal has ended it.
bool train_stages(const Run& run, Classifier& model) {
    const Options& o = run.options;
    const std::vector<Sample> samples =
                                  tokenize(run.inputs.corpora.train, run.inputs.tokenizer, o.max_length),
                              validation =
                                  tokenize(run.inputs.corpora.validation, run.inputs.tokenizer, o.max_length);
    // Checkpoints of the second stage include the result of the first one.
    const bool resumes_second =
        o.resume &&
        run.group.any(!mz::training::CheckpointFolder(o.checkpoints + "/" + finetuning).files().empty());
    if (o.pretrain_epochs > 0 && !resumes_second && !pretrain(run, samples, model)) return false;
    return o.epochs == 0 || finetune(run, samples, validation, model);
}

// Returns the exit code that a shell reports for a signal, which may have reached another rank.
int exit_code_when_stopped() {
    const int signal = mz::training::StopSignals::last();
    return 128 + (signal == 0 ? SIGTERM : signal);
}

// Returns the exit code.
int run_program(Options& o) {
    const mz::distributed::Group group = mz::distributed::init();
    if (o.threads > 0) mz::set_num_threads(o.threads);
    if (!o.device_given) o.device = group.device();
    if (!group.leader() && std::freopen("/dev/null", "w", stdout) == nullptr)  // rank 0 prints for all
        throw std::runtime_error("/dev/null: cannot be opened");
    mz::distributed::manual_seed(group, o.seed);
    if (group.leader()) make_folders(o);
    Run run{o, group, read_inputs(o)};
    if (!o.checkpoints.empty()) run.settings = settings_of(o, run.inputs);
    Classifier model(run.inputs.config, {.pooler = o.pooler});
    model.to(o.device);
    load_weights(run, model);
    run.inputs.weights.clear();  // the model has its own copy
    print_header(run, model);
    if (!train_stages(run, model)) return exit_code_when_stopped();
    if (group.leader() && !o.save.empty()) save_model(o.save, run.inputs, model);
    if (group.leader() && !o.predict.empty()) predict(run, model);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    mz::set_log_sink(program::log_to_stderr);
    return program::run("bert_classifier", [&] {
        Options options;
        const int code = parse_options(argc, argv, options);
        return code < 0 ? run_program(options) : code;
    });
}
