#include "bert/trainer.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "program.h"
#include "training/ranks.h"
#include "training/step_profile.h"

namespace mz = mezzo;

namespace bert {

using training::Settings;

namespace {

bool has_suffix(const std::string& name, std::initializer_list<const char*> suffixes) {
    return std::any_of(suffixes.begin(), suffixes.end(), [&](const char* s) { return name.ends_with(s); });
}

// Weight decay for matrices; none for biases and LayerNorm.
std::vector<mz::optim::AdamWGroup> parameter_groups(const Options& options, const Stage& stage) {
    mz::optim::AdamWOptions decayed{.lr = stage.lr, .weight_decay = options.weight_decay},
        plain{.lr = stage.lr, .weight_decay = 0};
    std::vector<mz::optim::AdamWGroup> groups{{.options = decayed}, {.options = plain}};
    for (const auto& named : stage.model->named_parameters())
        groups[has_suffix(named.first, {"bias", "LayerNorm.weight"}) ? 1 : 0].named_params.push_back(named);
    return groups;
}

// Returns the stage in which a checkpoint was saved. Throws if it belongs to a training with other settings.
std::int64_t stage_of(const mz::training::Checkpoint& checkpoint, const std::string& path) {
    std::int64_t stage = -1;
    for (const auto& [name, value] : checkpoint.check_settings(path).metadata)
        if (name == "stage") program::parse_number(std::string_view(value), stage);
    if (stage < 0) throw std::runtime_error(path + ": is no checkpoint of this program");
    return stage;
}

class Trainer {
public:
    Trainer(const Options& options, const mz::distributed::Group& group, const Settings& settings,
            const Stage& stage)
        : options_(options),
          group_(group),
          stage_(stage),
          parallel_(*stage.model, group),
          optimizer_(parameter_groups(options, stage)),
          scaler_({.enabled = options.precision == "fp16"}),
          total_steps_(count_steps()),
          scheduler_(optimizer_, {.warmup_steps = std::int64_t(options.warmup * double(total_steps_)),
                                  .total_steps = total_steps_}),
          progress_(options.progress, "texts"),
          parameters_(stage.model->parameters()),
          checkpoint_({.model = *stage.model,
                       .optimizer = optimizer_,
                       .scaler = scaler_,
                       .others = {{"position", at_}},
                       .settings = settings,
                       .group = &group_}) {
        if (options.shard) mz::distributed::shard(optimizer_, parallel_);
        if (options.resume && mz::distributed::checkpoint_exists(group, options.checkpoint)) resume();
        // If there are two stages, the second is profiled.
        if (stage.number == 1 || options.epochs == 0)
            profile_.emplace(options.profile, group, *stage.model, options.device, total_steps_ - at_.step);
    }

    bool run() {
        stage_.model->train();
        while (at_.epoch < stage_.epochs && at_.step < total_steps_) {
            epoch_loss_ = 0;
            epoch_batches_ = 0;
            const double start = progress_.seconds();
            while (at_.batch < stage_.batches(at_.epoch) && at_.step < total_steps_) {
                step();
                const bool asked = signals_.received(group_);
                if (asked || (options_.checkpoint_every > 0 && at_.step % options_.checkpoint_every == 0))
                    save();
                if (asked) return stop();
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
        return true;
    }

private:
    std::int64_t count_steps() const {
        std::int64_t steps = 0;
        for (std::int64_t e = 0; e < stage_.epochs; ++e)
            steps += (stage_.batches(e) + options_.accumulate - 1) / options_.accumulate;
        return stage_.max_steps > 0 ? std::min(steps, stage_.max_steps) : steps;
    }

    bool stop() {
        report();
        progress_.end_line();
        fmt::print("stopped by a signal after step {} of {}{}\n", at_.step, stage_.name,
                   options_.checkpoint.empty() ? "" : "; --resume goes on from " + options_.checkpoint);
        return false;
    }

    // Runs forward and backward of up to `accumulate` batches, then one update.
    void step() {
        const std::int64_t last = std::min(at_.batch + options_.accumulate, stage_.batches(at_.epoch));
        const auto parts = double(last - at_.batch);
        mz::Tensor step_loss;
        for (; at_.batch < last; ++at_.batch) {
            // Only the last backward pass reduces the accumulated gradients over the ranks.
            std::optional<mz::distributed::DataParallel::Local> here;
            if (at_.batch + 1 < last) here.emplace(parallel_);
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
        if (profile_) profile_->step_done();
        if (at_.step % options_.log_every == 0) report();
    }

    void report() {
        if (pending_steps_ == 0) return;
        const double sum = group_.mean(pending_).item<double>();
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
        checkpoint_.save(options_.checkpoint,
                         {.step = at_.step, .metadata = {{"stage", std::to_string(stage_.number)}}});
    }

    void resume() {
        if (stage_of(checkpoint_, options_.checkpoint) != stage_.number) return;
        checkpoint_.load(options_.checkpoint);
        fmt::print("resumed {} at epoch {}, step {}\n", stage_.name, at_.epoch + 1, at_.step);
    }

    const Options& options_;
    const mz::distributed::Group group_;
    const Stage& stage_;
    mz::distributed::DataParallel parallel_;
    mz::optim::AdamW optimizer_;
    mz::amp::GradScaler scaler_;
    std::int64_t total_steps_;
    mz::optim::LinearWarmup scheduler_;
    mz::training::StopSignals signals_;
    training::Progress progress_;
    mz::Tensors parameters_;
    Position at_;
    mz::training::Checkpoint checkpoint_;
    std::optional<training::StepProfile> profile_;
    mz::Tensor pending_;  // sum of the losses of steps not yet reported
    std::int64_t pending_steps_ = 0, epoch_batches_ = 0;
    double epoch_loss_ = 0;
};

}  // namespace

mz::StateDict Position::state_dict() const {
    return {{"position", mz::Tensor::from(std::vector<std::int64_t>{epoch, batch, step}, {3})}};
}

void Position::load_state_dict(const mz::StateDict& state) {
    const bool known = state.size() == 1 && state[0].second.numel() == 3;
    const auto v = known ? state[0].second.to_vector<std::int64_t>() : std::vector<std::int64_t>{-1, -1, -1};
    if (v[0] < 0 || v[1] < 0 || v[2] < 0) throw std::runtime_error("its position is damaged");
    epoch = v[0];
    batch = v[1];
    step = v[2];
}

bool train(const Options& options, const mz::distributed::Group& group, const Settings& settings,
           const Stage& stage) {
    return Trainer(options, group, settings, stage).run();
}

std::int64_t stage_to_resume(const Options& options, const mz::distributed::Group& group,
                             const Settings& settings) {
    if (!options.resume || !mz::distributed::checkpoint_exists(group, options.checkpoint)) return 0;
    return stage_of(mz::training::Checkpoint({.settings = settings}), options.checkpoint);
}

}  // namespace bert
