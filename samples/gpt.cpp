// Trains a small GPT-2 or Llama on a text, and continues a prompt with it or with a model from a folder.
//
// Trains:   a decoder-only transformer; by default GPT-2 with 4 layers of width 128, 0.84 M parameters.
// Data:     text files, as bytes or as tokens of a BPE; by default the licences of this machine.
// Takes:    1 to 4 minutes for the 500 steps of 16 x 128 bytes, on one core of a Xeon.
// Look at:  Training, which holds the Trainer, and text.h, which makes batches of a text; the bits per byte
//           of the validation text, which begin near 8, and the text that the model writes at the end.
// Try:      build/samples/gpt --precision bf16 --steps 2000 --checkpoints run --out licences
//           build/samples/gpt --model licences --prompt "It was " --tokens 400
// More:     docs/guide/generation.md; mezzo-run -n 2 build/samples/gpt ... trains in two processes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numbers>
#include <optional>

#include "gpt/options.h"
#include "gpt/text.h"
#include "mezzo/data/batch_loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/distributed/group.h"
#include "mezzo/distributed/state.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/causal_lm.h"
#include "mezzo/models/generate.h"
#include "mezzo/models/gpt.h"
#include "mezzo/models/gpt_config.h"
#include "mezzo/models/gpt_files.h"
#include "mezzo/models/llama.h"
#include "mezzo/train/metrics.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/stop_signals.h"
#include "mezzo/train/trainer.h"
#include "program.h"
#include "training.h"

namespace mz = mezzo;
using namespace gpt;

namespace {

std::unique_ptr<mz::nn::CausalLm> make_model(const Options& o, std::int64_t vocab_size) {
    if (o.architecture == "gpt")
        return std::make_unique<mz::nn::Gpt>(mz::nn::GptConfig{.vocab_size = vocab_size,
                                                               .n_positions = o.context,
                                                               .n_embd = o.width,
                                                               .n_layer = o.layers,
                                                               .n_head = o.heads,
                                                               .resid_pdrop = o.dropout,
                                                               .embd_pdrop = o.dropout,
                                                               .attn_pdrop = o.dropout});
    return std::make_unique<mz::nn::Llama>(
        mz::nn::LlamaConfig{.vocab_size = vocab_size,
                            .max_position_embeddings = o.context,
                            .hidden_size = o.width,
                            .intermediate_size = (8 * o.width / 3 + 15) / 16 * 16,
                            .num_hidden_layers = o.layers,
                            .num_attention_heads = o.heads,
                            .num_key_value_heads = o.heads % 2 == 0 ? o.heads / 2 : o.heads,
                            .tie_word_embeddings = true});
}

// Weight decay for matrices; none for biases and normalisations.
std::vector<mz::optim::AdamWGroup> parameter_groups(const Options& o, const mz::nn::CausalLm& model) {
    mz::optim::AdamWOptions decayed{
        .lr = o.lr, .weight_decay = o.weight_decay, .states = program::state_precision(o.states)};
    mz::optim::AdamWOptions plain = decayed;
    plain.weight_decay = 0;
    std::vector<mz::optim::AdamWGroup> groups{{.options = decayed}, {.options = plain}};
    for (const auto& named : model.named_parameters())
        groups[named.second.dim() == 2 ? 0 : 1].named_params.push_back(named);
    return groups;
}

// Linear warm-up over a twentieth of the steps, then half a cosine down to a tenth.
double rate_factor(std::int64_t total, std::int64_t step) {
    const double warmup = std::max(1.0, double(total) / 20);
    if (double(step) < warmup) return double(step + 1) / (warmup + 1);
    const double done = (double(step) - warmup) / std::max(1.0, double(total) - warmup);
    return 0.1 + 0.45 * (1 + std::cos(std::numbers::pi * std::min(1.0, done)));
}

mz::io::Metadata settings_of(const Options& o, const Texts& texts) {
    const auto shown = [](const auto& value) { return fmt::format("{}", value); };
    return {{"--architecture", o.architecture},
            {"--precision", o.precision},
            {"--states", o.states},
            {"--layers", shown(o.layers)},
            {"--width", shown(o.width)},
            {"--heads", shown(o.heads)},
            {"--context", shown(o.context)},
            {"--bpe", shown(o.bpe)},
            {"--dropout", shown(o.dropout)},
            {"--steps", shown(o.steps)},
            {"--batch", shown(o.batch)},
            {"--lr", shown(o.lr)},
            {"--seed", shown(o.seed)},
            {"--weight-decay", shown(o.weight_decay)},
            {"text", texts.digest}};
}

// The batches of a training: sample i of this data set is this rank's part of the batch of step i.
struct TrainingBatches {
    std::int64_t size() const { return steps; }
    Pieces get(std::int64_t step) const { return draw_pieces(*text, batch, context, seed, step, shard); }
    const Tokens* text;
    std::int64_t steps, batch, context;
    std::uint64_t seed;
    mz::data::Shard shard;
};
Pieces only(std::vector<Pieces> batches) { return std::move(batches.front()); }

class Training {
public:
    Training(const Options& o, const mz::distributed::Group& group, const Texts& texts,
             mz::nn::CausalLm& model)
        : o_(o),
          group_(group),
          texts_(texts),
          model_(model),
          loader_({.text = &texts.train,
                   .steps = o.steps,
                   .batch = o.batch,
                   .context = o.context,
                   .seed = o.seed,
                   .shard = group.shard()},
                  only, {.batch_size = 1}),
          optimizer_(parameter_groups(o, model)),
          parallel_(model, group),
          schedule_(optimizer_, [this](std::int64_t step) { return rate_factor(o_.steps, step); }),
          trainer_(model, optimizer_, trainer_options()) {}

    // Returns the exit code: 0, or 128 + N after signal N.
    int run() {
        const auto loss = [this](const Pieces& pieces) {
            return model_.loss(pieces.input.to(*o_.device), pieces.target.to(*o_.device));
        };
        if (trainer_.fit(loader_, loss) != mz::training::Ended::stopped) return 0;
        fmt::print("stopped by a signal after step {}{}\n", trainer_.status().step,
                   o_.checkpoints.empty() ? "" : "; --resume goes on from " + o_.checkpoints);
        return 128 + mz::training::StopSignals::last();
    }

private:
    mz::training::TrainerOptions trainer_options() {
        if (group_.leader() && !o_.tensorboard.empty())
            logs_.push_back(&tensorboard_.emplace(o_.tensorboard));
        return {.precision = program::trainer_precision(o_.precision),
                .fp8 = {.least_size = 16},
                .max_norm = 1,
                .scheduler = &schedule_,
                .parallel = &parallel_,
                .evaluate = [this] { return evaluate(); },
                .evaluate_every = o_.report_every,
                .log_every = o_.report_every,
                .logs = logs_,
                .on_start = [this](const mz::training::TrainingStatus& now) { start(now); },
                .checkpoints = o_.checkpoints,
                .checkpoint_every = o_.checkpoint_every,
                .resume = o_.resume,
                .settings = settings_of(o_, texts_)};
    }

    void start(const mz::training::TrainingStatus& now) {
        if (now.step > 0) fmt::print("resumed at step {}\n", now.step);
        evaluated_step_ = now.step;
        started_ = Clock::now();
    }

    // Computes the bits per byte of the validation text, the same on all ranks, and prints a line.
    mz::io::Metrics evaluate() {
        const mz::training::TrainingStatus& now = trainer_.status();
        const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
        const double rate = double((now.step - evaluated_step_) * o_.batch * o_.context) / seconds;
        const double bits = validation_bits();
        const std::string scale =
            now.scale ? fmt::format("  scale {:g}, skipped {}", *now.scale, now.skipped) : "";
        fmt::print("step {:>6}  loss {:.4f}  validation {:.3f} bits per byte  {:.0f} {}/s{}\n", now.step,
                   now.loss, bits, rate, texts_.vocabulary.unit(), scale);
        std::fflush(stdout);
        evaluated_step_ = now.step;
        started_ = Clock::now();
        return {{"validation_bits_per_byte", bits}, {"tokens_per_s", rate}};
    }

    double validation_bits() const {
        const Pieces pieces = spread_pieces(texts_.validation, 4 * o_.batch, o_.context);
        double nats = 0;
        const std::int64_t rows = pieces.input.size(0);
        for (std::int64_t i = 0; i < rows; i += o_.batch) {
            const std::int64_t end = std::min(rows, i + o_.batch);
            const auto part = [&](const mz::Tensor& x) { return x.slice(0, i, end).to(*o_.device); };
            nats += double(end - i) * model_.loss(part(pieces.input), part(pieces.target)).item<double>();
        }
        const double tokens_per_byte = double(texts_.validation.size()) / double(texts_.validation_bytes);
        return nats / double(rows) / std::numbers::ln2 * tokens_per_byte;
    }

    using Clock = std::chrono::steady_clock;
    const Options& o_;
    const mz::distributed::Group group_;
    const Texts& texts_;
    mz::nn::CausalLm& model_;
    mz::data::BatchLoader<TrainingBatches, Pieces (*)(std::vector<Pieces>)> loader_;
    mz::optim::AdamW optimizer_;
    mz::distributed::DataParallel parallel_;
    mz::optim::LambdaLR schedule_;
    std::optional<mz::io::SummaryWriter> tensorboard_;
    std::vector<mz::io::MetricWriter*> logs_;
    mz::training::Trainer trainer_;
    std::int64_t evaluated_step_ = 0;  // step of the last evaluation
    Clock::time_point started_ = Clock::now();
};

void write_text(const std::string& path, const std::string& text) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    const bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if ((file && std::fclose(file) != 0) || !written) throw std::runtime_error(path + ": cannot be written");
}

// Writes config.json, model.safetensors and tokenizer.json, which --model and Python's transformers can load.
void save_model(const std::string& folder, const mz::nn::CausalLm& model, const Vocabulary& vocabulary) {
    const auto* const own = dynamic_cast<const mz::nn::Gpt*>(&model);
    mz::io::save_safetensors(folder + "/model.safetensors", model.state_dict());
    write_text(folder + "/config.json",
               own ? mz::io::to_json(own->config)
                   : mz::io::to_json(dynamic_cast<const mz::nn::Llama&>(model).config));
    const std::string tokenizer = folder + "/tokenizer.json";
    if (vocabulary.json().empty())
        std::filesystem::remove(tokenizer);  // of another model that was saved there
    else
        write_text(tokenizer, vocabulary.json());
}

// Returns the tokens of the prompt.
std::vector<std::int64_t> prompt_of(const Options& o, const Vocabulary& vocabulary, std::int64_t context) {
    std::vector<std::int64_t> prompt = vocabulary.ids(o.prompt);
    if (std::int64_t(prompt.size()) > context)
        throw std::runtime_error(fmt::format("--prompt: {} {} are more than the context of {}", prompt.size(),
                                             vocabulary.unit(), context));
    return prompt;
}

// Prints the text as it is generated.
void continue_prompt(const Options& o, const Vocabulary& vocabulary, mz::nn::CausalLm& model) {
    if (model.vocab_size() != vocabulary.size())
        throw std::runtime_error(
            fmt::format("--model: {} has {} tokens, but its vocabulary {}{}",
                        o.model.empty() ? "it" : o.model, model.vocab_size(), vocabulary.size(),
                        vocabulary.json().empty() ? ": bytes, as no tokenizer.json is there" : ""));
    mz::nn::GenerateOptions options = o.generate;
    const std::vector<std::int64_t> prompt = prompt_of(o, vocabulary, model.max_length());
    options.max_new_tokens =
        std::min(options.max_new_tokens, model.max_length() - std::int64_t(prompt.size()));
    TextPrinter printer(vocabulary);
    options.on_token = [&printer](std::size_t, std::int64_t id) {
        printer.add(id);
        return true;
    };
    if (o.quantize) mz::nn::quantize_weights(model);
    const mz::nn::EvalMode evaluation(model);
    const mz::amp::Autocast scope(program::autocast(o.precision));
    fmt::print("\n{}", o.prompt);
    const auto start = std::chrono::steady_clock::now();
    (void)mz::nn::generate(model, {prompt}, options);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    printer.finish();
    fmt::print("\n\n{} {}, {:.0f} per second\n", options.max_new_tokens, vocabulary.unit(),
               double(options.max_new_tokens) / seconds);
}

void print_header(const Options& o, const mz::distributed::Group& group, const Texts& texts,
                  const mz::nn::CausalLm& model) {
    fmt::print("{}, {} layers, width {}, {:.2f} M parameters, {}, batch {} x {} {}, seed {}\n",
               o.architecture, o.layers, o.width, double(model.num_parameters()) * 1e-6, o.precision, o.batch,
               o.context, texts.vocabulary.unit(), o.seed);
    fmt::print("{} bytes of text, {} for validation\n", texts.train_bytes + texts.validation_bytes,
               texts.validation_bytes);
    if (!texts.vocabulary.json().empty())
        fmt::print("{} tokens, {:.2f} bytes each\n", texts.vocabulary.size(),
                   double(texts.train_bytes) / double(texts.train.size()));
    fmt::print("{}\n", mz::hardware_name(*o.device));
    if (group.size() > 1) fmt::print("{} ranks share each batch\n", group.size());
}

// Finds what cannot be written before the training, not after it.
void check_files(const Options& o, bool leader) {
    if (!leader) return;
    if (!o.checkpoints.empty()) program::require_folder("--checkpoints", o.checkpoints);
    if (!o.tensorboard.empty()) program::require_folder("--tensorboard", o.tensorboard);
    if (o.out.empty()) return;
    program::require_folder("--out", o.out);
    for (const char* const name : {"model.safetensors", "config.json", "tokenizer.json"})
        program::require_file("--out", std::filesystem::path(o.out) / name);
}

// Returns the exit code.
int run(Options o) {
    const mz::distributed::Group group = mz::distributed::init();
    if (o.threads > 0) mz::set_num_threads(o.threads);
    if (!o.device) o.device = group.device();
    if (!group.leader() && std::freopen("/dev/null", "w", stdout) == nullptr)  // rank 0 prints for all
        throw std::runtime_error(std::string("/dev/null: ") + std::strerror(errno));
    mz::distributed::manual_seed(group, o.seed);
    if (!o.model.empty()) {
        const mz::nn::AnyModule loaded = mz::io::load_causal_lm(o.model);
        loaded.module().to(*o.device);
        if (group.leader()) continue_prompt(o, Vocabulary::of_folder(o.model), loaded.as<mz::nn::CausalLm>());
        return 0;
    }
    check_files(o, group.leader());
    const Texts texts = read_texts(o);
    static_cast<void>(prompt_of(o, texts.vocabulary, o.context));  // errors come before the training
    const auto model = make_model(o, texts.vocabulary.size());
    model->to(*o.device);
    print_header(o, group, texts, *model);
    if (o.steps > 0)
        if (const int code = Training(o, group, texts, *model).run(); code != 0) return code;
    if (!group.leader()) return 0;
    if (!o.out.empty()) save_model(o.out, *model, texts.vocabulary);
    continue_prompt(o, texts.vocabulary, *model);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("gpt", [&] {
        Options options;
        const int code = parse_options(argc, argv, options);
        return code < 0 ? run(options) : code;
    });
}
