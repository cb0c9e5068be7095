#include "bert/trainer.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>

namespace mz = mezzo;

namespace bert {

using training::check_same_settings, training::entry, training::Settings;

namespace {

bool has_suffix(const std::string& name, std::initializer_list<const char*> suffixes) {
    return std::any_of(suffixes.begin(), suffixes.end(), [&](const char* s) { return name.ends_with(s); });
}

// Decay for matrices; none for biases and LayerNorm.
std::vector<mz::optim::AdamWGroup> parameter_groups(const Options& options, const Stage& stage) {
    mz::optim::AdamWOptions decayed{.lr = stage.lr, .weight_decay = options.weight_decay},
        plain{.lr = stage.lr, .weight_decay = 0};
    std::vector<mz::optim::AdamWGroup> groups{{.options = decayed}, {.options = plain}};
    for (const auto& named : stage.model->named_parameters())
        groups[has_suffix(named.first, {"bias", "LayerNorm.weight"}) ? 1 : 0].named_params.push_back(named);
    return groups;
}

mz::Tensor integers(const std::vector<std::int64_t>& values) {
    return mz::Tensor::from(values, {std::int64_t(values.size())});
}

Position position_of(const mz::io::Checkpoint& checkpoint, const std::string& path) {
    const auto v = entry(checkpoint, path, "position").to_vector<std::int64_t>();
    if (v.size() != 4) throw std::runtime_error(path + ": its position is damaged");
    return {v[0], v[1], v[2], v[3]};
}

class Trainer {
public:
    Trainer(const Options& options, const Settings& settings, const Stage& stage)
        : options_(options),
          settings_(settings),
          stage_(stage),
          optimizer_(parameter_groups(options, stage)),
          scaler_({.enabled = options.precision == "fp16"}),
          total_steps_(count_steps()),
          scheduler_(optimizer_, {.warmup_steps = std::int64_t(options.warmup * double(total_steps_)),
                                  .total_steps = total_steps_}),
          progress_(options.progress, "texts"),
          parameters_(stage.model->parameters()) {
        at_.stage = stage.number;
        if (options.resume && std::filesystem::exists(options.checkpoint)) resume();
    }

    void run() {
        stage_.model->train();
        while (at_.epoch < stage_.epochs && at_.step < total_steps_) {
            epoch_loss_ = 0;
            epoch_batches_ = 0;
            const double start = progress_.seconds();
            while (at_.batch < stage_.batches(at_.epoch) && at_.step < total_steps_) {
                step();
                if (options_.checkpoint_every > 0 && at_.step % options_.checkpoint_every == 0) save();
            }
            report();
            progress_.end_line();
            const double end = progress_.seconds();
            stage_.epoch_done(at_.epoch, epoch_batches_ ? epoch_loss_ / double(epoch_batches_) : 0,
                              end - start);
            progress_.leave_out(end);
            stage_.model->train();
            ++at_.epoch;
            at_.batch = 0;
            save();
        }
    }

private:
    std::int64_t count_steps() const {
        std::int64_t steps = 0;
        for (std::int64_t e = 0; e < stage_.epochs; ++e)
            steps += (stage_.batches(e) + options_.accumulate - 1) / options_.accumulate;
        return stage_.max_steps > 0 ? std::min(steps, stage_.max_steps) : steps;
    }

    // Forward and backward of up to `accumulate` batches, then one update.
    void step() {
        const std::int64_t last = std::min(at_.batch + options_.accumulate, stage_.batches(at_.epoch));
        const auto parts = double(last - at_.batch);
        mz::Tensor step_loss;
        for (; at_.batch < last; ++at_.batch) {
            mz::Tensor loss;
            {
                const mz::amp::Autocast scope(options_.autocast());
                loss = stage_.loss(at_.epoch, at_.batch);
            }
            scaler_.scale(loss / parts).backward();
            const mz::Tensor value = loss.detach() / parts;
            step_loss = step_loss.defined() ? step_loss + value : value;
            progress_.count(stage_.samples(at_.epoch, at_.batch));
        }
        scaler_.unscale_(optimizer_);
        if (options_.clip > 0) mz::nn::clip_grad_norm_(parameters_, options_.clip);
        scaler_.step(optimizer_);
        scaler_.update();
        scheduler_.step();
        optimizer_.zero_grad();
        ++at_.step;
        // Losses stay on the device until a report reads them.
        pending_ = pending_.defined() ? pending_ + step_loss : step_loss;
        ++pending_steps_;
        if (stage_.step_done) stage_.step_done(at_.step, step_loss.item<double>());
        if (at_.step % options_.log_every == 0) report();
    }

    void report() {
        if (pending_steps_ == 0) return;
        const double sum = pending_.item<double>();
        epoch_loss_ += sum;
        epoch_batches_ += pending_steps_;
        progress_.show({.stage = stage_.name,
                        .epoch = at_.epoch,
                        .epochs = stage_.epochs,
                        .step = at_.step,
                        .steps = total_steps_,
                        .loss = sum / double(pending_steps_),
                        .lr = optimizer_.lr(),
                        .scaled = scaler_.is_enabled(),
                        .scale = scaler_.get_scale(),
                        .skipped = optimizer_.skipped_steps()});
        pending_ = mz::Tensor();
        pending_steps_ = 0;
    }

    void save() {
        if (options_.checkpoint.empty()) return;
        mz::io::save_checkpoint(
            options_.checkpoint,
            {.model = stage_.model->state_dict(),
             .optimizer = optimizer_.state_dict(),
             .scaler = scaler_.state_dict(),
             .extra = {{"position", integers({at_.stage, at_.epoch, at_.batch, at_.step})},
                       {"settings", training::to_tensor(settings_)}}});
    }

    void resume() {
        const mz::io::Checkpoint checkpoint = mz::io::load_checkpoint(options_.checkpoint);
        check_same_settings(entry(checkpoint, options_.checkpoint, "settings"), settings_,
                            options_.checkpoint);
        const Position position = position_of(checkpoint, options_.checkpoint);
        if (position.stage != stage_.number) return;
        stage_.model->load_state_dict(checkpoint.model);
        optimizer_.load_state_dict(checkpoint.optimizer);
        scaler_.load_state_dict(checkpoint.scaler);
        mz::set_random_state(checkpoint.random);
        at_ = position;
        fmt::print("resumed {} at epoch {}, step {}\n", stage_.name, at_.epoch + 1, at_.step);
    }

    const Options& options_;
    const Settings& settings_;
    const Stage& stage_;
    mz::optim::AdamW optimizer_;
    mz::amp::GradScaler scaler_;
    std::int64_t total_steps_;
    mz::optim::LinearWarmup scheduler_;
    training::Progress progress_;
    mz::Tensors parameters_;
    Position at_;
    mz::Tensor pending_;  // sum of the losses of steps not yet reported
    std::int64_t pending_steps_ = 0, epoch_batches_ = 0;
    double epoch_loss_ = 0;
};

}  // namespace

void train(const Options& options, const Settings& settings, const Stage& stage) {
    Trainer(options, settings, stage).run();
}

std::int64_t stage_to_resume(const Options& options, const Settings& settings) {
    if (!options.resume || !std::filesystem::exists(options.checkpoint)) return 0;
    const mz::io::Checkpoint checkpoint = mz::io::load_checkpoint(options.checkpoint);
    check_same_settings(entry(checkpoint, options.checkpoint, "settings"), settings, options.checkpoint);
    return position_of(checkpoint, options.checkpoint).stage;
}

}  // namespace bert
