#include "resnet/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <stdexcept>

#include <fmt/format.h>

#include "program.h"
#include "resnet/log.h"
#include "resnet/precision.h"
#include "training/progress.h"

namespace mz = mezzo;

namespace resnet {

namespace {

// The factor of the learning rate after so many steps: a linear warm-up, then the schedule.
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

// What an epoch has come to; all of it is in the checkpoint.
struct Totals {
    double loss = 0, right = 0, steps = 0, images = 0;
    double seconds = 0, all_seconds = 0;  // of training in this epoch, and in all
    double lr = 0;                        // of the last step
};

mz::Tensor to_tensor(const Totals& t) {
    return mz::Tensor::from(
        std::vector<double>{t.loss, t.right, t.steps, t.images, t.seconds, t.all_seconds, t.lr}, {7});
}
Totals totals_of(const mz::Tensor& stored, const std::string& path) {
    const std::vector<double> v = stored.to_vector<double>();
    if (v.size() != 7) throw std::runtime_error(path + ": its totals are damaged");
    return {v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
}

// Where a training stands.
struct Position {
    std::int64_t epoch = 0, batch = 0, step = 0;
};

mz::Tensor to_tensor(const Position& p) {
    return mz::Tensor::from(std::vector<std::int64_t>{p.epoch, p.batch, p.step}, {3});
}
// batch is from 0 to the number of batches of an epoch: a checkpoint may lie between the last one and the
// evaluation.
Position position_of(const mz::Tensor& stored, const std::string& path, std::int64_t epochs,
                     std::int64_t batches, std::int64_t total) {
    const std::vector<std::int64_t> v = stored.to_vector<std::int64_t>();
    const bool possible = v.size() == 3 && v[0] >= 0 && v[0] <= epochs && v[1] >= 0 && v[1] <= batches &&
                          v[2] == std::min(v[0] * batches + v[1], total);
    if (!possible) throw std::runtime_error(path + ": its position is damaged");
    return {v[0], v[1], v[2]};
}

mz::Tensor number_right(const mz::Tensor& logits, const mz::Tensor& labels) {
    return mz::sum(mz::eq(mz::argmax(logits, 1), labels));
}

class Trainer {
public:
    Trainer(const Options& options, const training::Settings& settings, Images& images, mz::nn::ResNet& model)
        : options_(options),
          settings_(settings),
          images_(images),
          model_(model),
          optimizer_(model.named_parameters(), {.lr = options.lr,
                                                .momentum = options.momentum,
                                                .weight_decay = options.weight_decay,
                                                .nesterov = options.nesterov}),
          precision_(options, model, optimizer_),
          total_steps_(count_steps()),
          scheduler_(optimizer_,
                     [schedule = options.schedule, total = total_steps_,
                      warmup = std::int64_t(options.warmup * double(total_steps_))](std::int64_t steps) {
                         return rate_factor(schedule, warmup, total, steps);
                     }),
          progress_(options.progress, "images") {
        if (options.resume && std::filesystem::exists(options.checkpoint)) resume();
        log_.emplace(options.log, at_.step, at_.batch == 0);
    }

    void run() {
        while (at_.epoch < options_.epochs && (at_.step < total_steps_ || at_.batch > 0)) {
            model_.train();
            epoch();
            evaluate();
            ++at_.epoch;
            at_.batch = 0;
            totals_ = {.all_seconds = totals_.all_seconds};
            save();
        }
    }

private:
    std::int64_t count_steps() const {
        const std::int64_t steps = options_.epochs * images_.train.size();
        return options_.max_steps > 0 ? std::min(steps, options_.max_steps) : steps;
    }

    void epoch() {
        started_ = progress_.seconds();
        images_.train.set_epoch(at_.epoch);
        auto it = images_.train.begin();
        for (std::int64_t skipped = 0; skipped < at_.batch; ++skipped) ++it;
        for (; it != images_.train.end() && at_.step < total_steps_; ++it) {
            step(*it);
            if (at_.step % options_.log_every == 0) report();
            if (options_.checkpoint_every > 0 && at_.step % options_.checkpoint_every == 0) save();
        }
        report();
        progress_.end_line();
    }

    void step(const mz::data::Batch& batch) {
        const mz::Tensor logits = precision_.forward(model_, batch.x);
        const mz::Tensor loss =
            mz::cross_entropy(logits, batch.y, {.label_smoothing = options_.label_smoothing});
        totals_.lr = optimizer_.lr();
        precision_.step(loss);
        scheduler_.step();
        sums_.add(loss.detach(), number_right(logits.detach(), batch.y), batch.x.size(0));
        progress_.count(batch.x.size(0));
        ++at_.batch;
        ++at_.step;
    }

    // Adds to the totals what has been done since the last report.
    void report() {
        if (sums_.steps == 0) return;
        const double loss = sums_.loss.item<double>(), right = sums_.right.item<double>();  // these wait
        const double now = progress_.seconds(), seconds = now - started_;
        started_ = now;
        totals_.loss += loss;
        totals_.right += right;
        totals_.steps += double(sums_.steps);
        totals_.images += double(sums_.images);
        totals_.seconds += seconds;
        totals_.all_seconds += seconds;
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
                   .seconds = totals_.all_seconds,
                   .lr = totals_.lr,
                   .skipped = optimizer_.skipped_steps(),
                   .peak_bytes = peak_bytes(cpu, mz::memory_stats(options_.device).max_allocated)};
        if (precision_.scaled()) row.scale = precision_.scale();
        return row;
    }

    // Accuracy on the test images, and the row of the epoch.
    void evaluate() {
        const double start = progress_.seconds();
        const mz::NoGrad no_grad;
        model_.eval();
        mz::Tensor right = mz::zeros({}, {.dtype = mz::int64, .device = options_.device});
        for (const mz::data::Batch& batch : images_.test)
            right = right + number_right(precision_.forward(model_, batch.x), batch.y);
        LogRow row = common_row("epoch");
        row.loss = totals_.loss / totals_.steps;
        row.train_accuracy = totals_.right / totals_.images;
        row.test_accuracy = double(right.item<std::int64_t>()) / double(images_.test_count);
        row.images_per_second = totals_.images / totals_.seconds;
        log_->add(row);
        fmt::print("epoch {}: loss {:.4f}, training accuracy {:.2f} %, test accuracy {:.2f} %, {:.1f} s\n",
                   row.epoch, row.loss, 100 * row.train_accuracy, 100 * *row.test_accuracy, totals_.seconds);
        std::fflush(stdout);
        progress_.leave_out(start);
    }

    void save() {
        if (options_.checkpoint.empty()) return;
        const double start = progress_.seconds();
        report();
        mz::io::save_checkpoint(options_.checkpoint,
                                {.model = model_.state_dict(),
                                 .optimizer = optimizer_.state_dict(),
                                 .scaler = precision_.state_dict(),
                                 .extra = {{"position", to_tensor(at_)},
                                           {"totals", to_tensor(totals_)},
                                           {"settings", training::to_tensor(settings_)}}});
        progress_.leave_out(start);
        started_ = std::min(started_, progress_.seconds());
    }

    void resume() {
        const std::string& path = options_.checkpoint;
        const mz::io::Checkpoint checkpoint = mz::io::load_checkpoint(path);
        training::check_same_settings(training::entry(checkpoint, path, "settings"), settings_, path);
        at_ = position_of(training::entry(checkpoint, path, "position"), path, options_.epochs,
                          images_.train.size(), total_steps_);
        totals_ = totals_of(training::entry(checkpoint, path, "totals"), path);
        model_.load_state_dict(checkpoint.model);
        optimizer_.load_state_dict(checkpoint.optimizer);
        precision_.load_state_dict(checkpoint.scaler);
        mz::set_random_state(checkpoint.random);
        fmt::print("resumed at epoch {}, step {}\n", at_.epoch + 1, at_.step);
    }

    const Options& options_;
    const training::Settings& settings_;
    Images& images_;
    mz::nn::ResNet& model_;
    mz::optim::SGD optimizer_;
    Precision precision_;
    std::int64_t total_steps_;
    mz::optim::LambdaLR scheduler_;
    training::Progress progress_;
    std::optional<Log> log_;
    Position at_;
    Totals totals_;
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
        {"--seed", shown(o.seed)},
        {"training data", images.digest},
        {"classes", fmt::format("{}", fmt::join(images.format.classes, ", "))},
        {"--weights", o.weights.empty() ? "none" : training::digest_of(model.state_dict())}};
}

void train(const Options& options, const training::Settings& settings, Images& images,
           mz::nn::ResNet& model) {
    Trainer(options, settings, images, model).run();
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
