#include "resnet/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "program.h"
#include "resnet/log.h"
#include "resnet/precision.h"
#include "training/progress.h"
#include "training/ranks.h"
#include "training/step_profile.h"

namespace mz = mezzo;

namespace resnet {

namespace {

// Returns the factor of the learning rate after so many steps: a linear warm-up, then the schedule.
double rate_factor(const std::string& schedule, std::int64_t warmup, std::int64_t total, std::int64_t steps) {
    if (steps < warmup) return double(steps + 1) / double(warmup);
    const double done =
        std::min(1.0, double(steps - warmup) / double(std::max<std::int64_t>(1, total - warmup)));
    if (schedule == "cosine") return 0.5 * (1 + std::cos(std::numbers::pi * done));
    if (schedule == "steps") return done < 0.5 ? 1 : done < 0.75 ? 0.1 : 0.01;
    return 1;
}

// Sums over some steps. They stay on the device until a report reads them.
struct Sums {
    mz::Tensor loss, right;
    std::int64_t steps = 0, images = 0;

    void add(const mz::Tensor& step_loss, const mz::Tensor& step_right, std::int64_t count) {
        loss = loss.defined() ? loss + step_loss : step_loss;
        right = right.defined() ? right + step_right : step_right;
        ++steps;
        images += count;
    }
};

// Totals of an epoch; all of them are in the checkpoint.
struct Totals {
    double loss = 0, right = 0, steps = 0, images = 0;
    double seconds = 0, all_seconds = 0;  // of training in this epoch, and in all epochs
    double lr = 0;                        // of the last step
};

// Position of a training and the totals of its epoch: part of the checkpoint.
struct Standing {
    std::int64_t epoch = 0, batch = 0, step = 0;
    Totals totals = {};
    std::int64_t epochs = 0, batches = 0, steps = 0;  // the end of the training

    mz::StateDict state_dict() const {
        const Totals& t = totals;
        return {{"position", mz::Tensor::from(std::vector<std::int64_t>{epoch, batch, step}, {3})},
                {"totals", mz::Tensor::from(std::vector<double>{t.loss, t.right, t.steps, t.images, t.seconds,
                                                                t.all_seconds, t.lr},
                                            {7})}};
    }
    // `batch` is from 0 to the number of batches of an epoch: a checkpoint may be saved between the last
    // batch and the evaluation.
    void load_state_dict(const mz::StateDict& state) {
        std::vector<std::int64_t> v;
        std::vector<double> t;
        for (const auto& [name, value] : state) {
            if (name == "position") v = value.to_vector<std::int64_t>();
            if (name == "totals") t = value.to_vector<double>();
        }
        const bool possible = v.size() == 3 && t.size() == 7 && v[0] >= 0 && v[0] <= epochs && v[1] >= 0 &&
                              v[1] <= batches && v[2] == std::min(v[0] * batches + v[1], steps);
        if (!possible) throw std::runtime_error("its position is damaged");
        epoch = v[0];
        batch = v[1];
        step = v[2];
        totals = {t[0], t[1], t[2], t[3], t[4], t[5], t[6]};
    }
};

mz::Tensor number_right(const mz::Tensor& logits, const mz::Tensor& labels) {
    return mz::sum(mz::eq(mz::argmax(logits, 1), labels));
}

class Trainer {
public:
    Trainer(const Options& options, const mz::distributed::Group& group, const training::Settings& settings,
            Images& images, mz::nn::ResNet& model)
        : options_(options),
          group_(group),
          images_(images),
          model_(model),
          optimizer_(model.named_parameters(), {.lr = options.lr,
                                                .momentum = options.momentum,
                                                .weight_decay = options.weight_decay,
                                                .nesterov = options.nesterov}),
          precision_(options, model, optimizer_),
          parallel_(model, group),
          total_steps_(count_steps()),
          scheduler_(optimizer_,
                     [schedule = options.schedule, total = total_steps_,
                      warmup = std::int64_t(options.warmup * double(total_steps_))](std::int64_t steps) {
                         return rate_factor(schedule, warmup, total, steps);
                     }),
          progress_(options.progress, "images"),
          at_{.epochs = options.epochs, .batches = images.train.size(), .steps = total_steps_},
          checkpoint_({.model = model,
                       .optimizer = optimizer_,
                       .scaler = precision_,
                       .others = {{"run", at_}},
                       .settings = settings,
                       .group = &group_}) {
        if (options.resume && mz::distributed::checkpoint_exists(group, options.checkpoint)) resume();
        profile_.emplace(options.profile, group, model, options.device, total_steps_ - at_.step);
        log_.emplace(group.leader() ? options.log : std::string(), at_.step, at_.batch == 0);
    }

    bool run() {
        while (at_.epoch < options_.epochs && (at_.step < total_steps_ || at_.batch > 0)) {
            model_.train();
            if (!epoch()) return stop();
            evaluate();
            ++at_.epoch;
            at_.batch = 0;
            at_.totals = {.all_seconds = at_.totals.all_seconds};
            save();
        }
        return true;
    }

private:
    std::int64_t count_steps() const {
        const std::int64_t steps = options_.epochs * images_.train.size();
        return options_.max_steps > 0 ? std::min(steps, options_.max_steps) : steps;
    }

    // Returns false if the training is to stop.
    bool epoch() {
        started_ = progress_.seconds();
        images_.train.set_position(
            {.epoch = at_.epoch, .samples = std::min(at_.batch * options_.batch, images_.train_count)});
        bool asked = false;
        for (auto it = images_.train.begin(); it != images_.train.end() && at_.step < total_steps_ && !asked;
             ++it) {
            step(*it);
            if (at_.step % options_.log_every == 0) report();
            asked = signals_.received(group_);
            if (asked || (options_.checkpoint_every > 0 && at_.step % options_.checkpoint_every == 0)) save();
        }
        report();
        progress_.end_line();
        return !asked;
    }

    bool stop() const {
        fmt::print("stopped by a signal after step {}{}\n", at_.step,
                   options_.checkpoint.empty() ? "" : "; --resume goes on from " + options_.checkpoint);
        return false;
    }

    void step(const mz::data::Batch& batch) {
        const mz::Tensor logits = precision_.forward(model_, batch.x);
        const mz::Tensor loss =
            mz::cross_entropy(logits, batch.y, {.label_smoothing = options_.label_smoothing});
        at_.totals.lr = optimizer_.lr();
        const mz::Tensor part = training::weighted(loss, batch.weight);
        precision_.step(part);
        scheduler_.step();
        // A row that is only there so that every rank has one does not count.
        const mz::Tensor right = number_right(logits.detach(), batch.y);
        const std::int64_t images =
            std::min(options_.batch, images_.train_count - at_.batch * options_.batch);  // of all ranks
        sums_.add(part.detach(), batch.weight > 0 ? right : mz::zeros_like(right), images);
        progress_.count(images);
        ++at_.batch;
        ++at_.step;
        profile_->step_done();
    }

    // Adds the steps since the last report to the totals.
    void report() {
        if (sums_.steps == 0) return;
        group_.all_reduce_(sums_.right);
        const double loss = group_.mean(sums_.loss).item<double>(),
                     right = sums_.right.item<double>();  // waits for the device
        const double now = progress_.seconds(), seconds = now - started_;
        started_ = now;
        at_.totals.loss += loss;
        at_.totals.right += right;
        at_.totals.steps += double(sums_.steps);
        at_.totals.images += double(sums_.images);
        at_.totals.seconds += seconds;
        at_.totals.all_seconds += seconds;
        LogRow row = common_row("step");
        row.loss = loss / double(sums_.steps);
        row.train_accuracy = right / double(sums_.images);
        row.images_per_second = double(sums_.images) / seconds;
        log_->add(row);
        sums_ = {};
        progress_.show({.epoch = at_.epoch,
                        .epochs = options_.epochs,
                        .step = at_.step,
                        .steps = total_steps_,
                        .loss = row.loss,
                        .lr = row.lr,
                        .scaled = row.scale.has_value(),
                        .scale = row.scale.value_or(1),
                        .skipped = row.skipped});
    }

    LogRow common_row(const char* kind) {
        const bool cpu = options_.device.type() == mz::DeviceType::cpu;
        LogRow row{.kind = kind,
                   .epoch = at_.epoch + 1,
                   .step = at_.step,
                   .seconds = at_.totals.all_seconds,
                   .lr = at_.totals.lr,
                   .skipped = optimizer_.skipped_steps(),
                   .peak_bytes = peak_bytes(cpu, mz::memory_stats(options_.device).max_allocated)};
        if (precision_.scaled()) row.scale = precision_.scale();
        return row;
    }

    // Computes the accuracy on the test images, and logs the epoch.
    void evaluate() {
        const double start = progress_.seconds();
        const mz::NoGrad no_grad;
        parallel_.broadcast_buffers();  // all ranks normalise alike
        model_.eval();
        mz::Tensor right = mz::zeros({}, {.dtype = mz::int64, .device = options_.device});
        for (const mz::data::Batch& batch : images_.test)
            if (batch.weight > 0) right = right + number_right(precision_.forward(model_, batch.x), batch.y);
        group_.all_reduce_(right);
        LogRow row = common_row("epoch");
        row.loss = at_.totals.loss / at_.totals.steps;
        row.train_accuracy = at_.totals.right / at_.totals.images;
        row.test_accuracy = double(right.item<std::int64_t>()) / double(images_.test_count);
        row.images_per_second = at_.totals.images / at_.totals.seconds;
        log_->add(row);
        fmt::print("epoch {}: loss {:.4f}, training accuracy {:.2f} %, test accuracy {:.2f} %, {:.1f} s\n",
                   row.epoch, row.loss, 100 * row.train_accuracy, 100 * *row.test_accuracy,
                   at_.totals.seconds);
        std::fflush(stdout);
        progress_.leave_out(start);
    }

    void save() {
        if (options_.checkpoint.empty()) return;
        const double start = progress_.seconds();
        report();
        checkpoint_.save(options_.checkpoint, {.step = at_.step});
        progress_.leave_out(start);
        started_ = std::min(started_, progress_.seconds());
    }

    void resume() {
        checkpoint_.load(options_.checkpoint);
        fmt::print("resumed at epoch {}, step {}\n", at_.epoch + 1, at_.step);
    }

    const Options& options_;
    const mz::distributed::Group group_;
    Images& images_;
    mz::nn::ResNet& model_;
    mz::optim::SGD optimizer_;
    Precision precision_;
    mz::distributed::DataParallel parallel_;
    mz::training::StopSignals signals_;
    std::int64_t total_steps_;
    mz::optim::LambdaLR scheduler_;
    training::Progress progress_;
    std::optional<Log> log_;
    std::optional<training::StepProfile> profile_;
    Standing at_;
    mz::training::Checkpoint checkpoint_;
    Sums sums_;
    double started_ = 0;  // the training second at which the sums began
};

}  // namespace

training::Settings settings_of(const Options& o, const Images& images, const mz::nn::ResNet& model) {
    const auto shown = [](const auto& value) { return fmt::format("{}", value); };
    return {
        {"--model", o.model},
        {"--stem", model.config.stem == mz::nn::ResNetStem::cifar ? "cifar" : "imagenet"},
        {"--shortcut", model.config.shortcut == mz::nn::ResNetShortcut::padding ? "padding" : "projection"},
        {"--precision or --opt-level", o.arithmetic()},
        {"--keep-batchnorm", o.keep_batchnorm},
        {"--loss-scale", o.loss_scale},
        {"--image-size", shown(images.format.size)},
        {"--augment", shown(o.augment)},
        {"--epochs", shown(o.epochs)},
        {"--max-steps", shown(o.max_steps)},
        {"--batch", shown(o.batch)},
        {"--lr", shown(o.lr)},
        {"--momentum", shown(o.momentum)},
        {"--weight-decay", shown(o.weight_decay)},
        {"--nesterov", shown(o.nesterov)},
        {"--schedule", o.schedule},
        {"--warmup", shown(o.warmup)},
        {"--label-smoothing", shown(o.label_smoothing)},
        {"--sync-bn", shown(o.sync_bn)},
        {"--seed", shown(o.seed)},
        {"training data", images.digest},
        {"classes", fmt::format("{}", fmt::join(images.format.classes, ", "))},
        {"--weights", o.weights.empty() ? "none" : training::digest_of(model.state_dict())}};
}

bool train(const Options& options, const mz::distributed::Group& group, const training::Settings& settings,
           Images& images, mz::nn::ResNet& model) {
    return Trainer(options, group, settings, images, model).run();
}

mz::Tensor logits_of(const Options& o, mz::nn::ResNet& model, const mz::Tensor& images) {
    const mz::NoGrad no_grad;
    const bool autocast = o.opt_level.empty() ? o.precision != "fp32" : o.opt_level == "O1";
    const mz::amp::Autocast scope(
        {.dtype = o.precision == "bf16" ? mz::bfloat16 : mz::float16, .enabled = autocast});
    model.eval();
    return model(images.to(model.conv1.weight.dtype())).to(mz::float32);
}

}  // namespace resnet
