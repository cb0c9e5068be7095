#include "gpt/trainer.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "training/ranks.h"
#include "training/settings.h"
#include "training/step_profile.h"

namespace mz = mezzo;

namespace gpt {

namespace {

// Weight decay for matrices; none for biases and normalisations.
std::vector<mz::optim::AdamWGroup> parameter_groups(const Options& o, const mz::nn::CausalLm& model) {
    mz::optim::AdamWOptions decayed{.lr = o.lr, .weight_decay = o.weight_decay}, plain = decayed;
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

training::Settings settings_of(const Options& o, const Texts& texts) {
    const auto shown = [](const auto& value) { return fmt::format("{}", value); };
    return {{"--architecture", o.architecture},
            {"--precision", o.precision},
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

// Number of steps done: part of the checkpoint.
struct Counter {
    std::int64_t step = 0, steps = 0;
    mz::StateDict state_dict() const {
        return {{"step", mz::Tensor::from(std::vector<std::int64_t>{step}, {1})}};
    }
    void load_state_dict(const mz::StateDict& state) {
        const std::int64_t saved = state.at("step").item<std::int64_t>();
        if (saved < 0 || saved > steps) throw std::runtime_error("its number of steps is damaged");
        step = saved;
    }
};

class Trainer {
public:
    Trainer(const Options& options, const mz::distributed::Group& group, const Texts& texts,
            mz::nn::CausalLm& model)
        : options_(options),
          group_(group),
          texts_(texts),
          model_(model),
          parallel_(model, group),
          optimizer_(parameter_groups(options, model)),
          scaler_({.enabled = options.precision == "fp16"}),
          scheduler_(optimizer_,
                     [total = options.steps](std::int64_t step) { return rate_factor(total, step); }),
          parameters_(model.parameters()),
          at_{.steps = options.steps},
          checkpoint_({.model = model,
                       .optimizer = optimizer_,
                       .scaler = scaler_,
                       .others = {{"position", at_}},
                       .settings = settings_of(options, texts),
                       .group = &group_}) {
        if (options.resume && mz::distributed::checkpoint_exists(group, options.checkpoint)) {
            checkpoint_.load(options.checkpoint);
            fmt::print("resumed at step {}\n", at_.step);
        }
        profile_.emplace(options.profile, group, model, options.device, at_.steps - at_.step);
    }

    bool run() {
        model_.train();
        while (at_.step < at_.steps) {
            step();
            const bool asked = signals_.received(group_), last = at_.step == at_.steps;
            if (asked || last || at_.step % options_.report_every == 0) report();
            if (asked || last || at_.step % options_.checkpoint_every == 0) save();
            if (asked && !last) {
                fmt::print(
                    "stopped by a signal after step {}{}\n", at_.step,
                    options_.checkpoint.empty() ? "" : "; --resume goes on from " + options_.checkpoint);
                return false;
            }
        }
        return true;
    }

private:
    void step() {
        const auto start = std::chrono::steady_clock::now();
        const Pieces pieces = draw_pieces(texts_.train, options_.batch, options_.context, options_.seed,
                                          at_.step, group_.shard());
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope(autocast(options_));
            loss = training::weighted(
                model_.loss(pieces.input.to(options_.device), pieces.target.to(options_.device)),
                pieces.weight);
        }
        scaler_.scale(loss).backward();
        scaler_.unscale_(optimizer_);
        mz::nn::clip_grad_norm_(parameters_, 1.0);
        scaler_.step(optimizer_);
        scaler_.update();
        scheduler_.step();
        optimizer_.zero_grad();
        ++at_.step;
        const mz::Tensor value = loss.detach();
        pending_ = pending_.defined() ? pending_ + value : value;
        ++pending_steps_;
        mz::synchronize(options_.device);
        seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        profile_->step_done();
    }

    void report() {
        const double loss = group_.mean(pending_).item<double>() / double(pending_steps_);
        const double rate = double(pending_steps_ * options_.batch * options_.context) / seconds_;
        const std::string scale =
            scaler_.is_enabled()
                ? fmt::format("  scale {:g}, skipped {}", scaler_.get_scale(), optimizer_.skipped_steps())
                : "";
        fmt::print("step {:>6}  loss {:.4f}  validation {:.3f} bits per byte  {:.0f} {}/s{}\n", at_.step,
                   loss, validation_bits(), rate, texts_.vocabulary.unit(), scale);
        std::fflush(stdout);
        pending_ = {};
        pending_steps_ = 0;
        seconds_ = 0;
    }

    // All ranks compute the same value.
    double validation_bits() {
        const mz::nn::EvalMode evaluation(model_);
        const mz::NoGrad plain;
        const mz::amp::Autocast scope(autocast(options_));
        const Pieces pieces = spread_pieces(texts_.validation, 4 * options_.batch, options_.context);
        double nats = 0;
        const std::int64_t rows = pieces.input.size(0);
        for (std::int64_t i = 0; i < rows; i += options_.batch) {
            const std::int64_t end = std::min(rows, i + options_.batch);
            const auto part = [&](const mz::Tensor& x) { return x.slice(0, i, end).to(options_.device); };
            nats += double(end - i) * model_.loss(part(pieces.input), part(pieces.target)).item<double>();
        }
        const double tokens_per_byte = double(texts_.validation.size()) / double(texts_.validation_bytes);
        return nats / double(rows) / std::numbers::ln2 * tokens_per_byte;
    }

    void save() {
        if (options_.checkpoint.empty()) return;
        checkpoint_.save(options_.checkpoint, {.step = at_.step});
    }

    const Options& options_;
    const mz::distributed::Group group_;
    const Texts& texts_;
    mz::nn::CausalLm& model_;
    mz::distributed::DataParallel parallel_;
    mz::optim::AdamW optimizer_;
    mz::amp::GradScaler scaler_;
    mz::optim::LambdaLR scheduler_;
    mz::training::StopSignals signals_;
    mz::Tensors parameters_;
    Counter at_;
    mz::training::Checkpoint checkpoint_;
    std::optional<training::StepProfile> profile_;
    mz::Tensor pending_;  // sum of the losses since the last report
    std::int64_t pending_steps_ = 0;
    double seconds_ = 0;  // of these steps
};

void write_text(const std::string& path, const std::string& text) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    const bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if ((file && std::fclose(file) != 0) || !written) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace

mz::amp::AutocastOptions autocast(const Options& o) {
    return {.device = o.device.type(),
            .dtype = o.precision == "bf16" ? mz::bfloat16 : mz::float16,
            .enabled = o.precision != "fp32"};
}

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

bool train(const Options& options, const mz::distributed::Group& group, const Texts& texts,
           mz::nn::CausalLm& model) {
    return Trainer(options, group, texts, model).run();
}

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

}  // namespace gpt
