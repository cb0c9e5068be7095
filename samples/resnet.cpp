// Trains a residual network to classify images, and classifies image files with it.
//
// Trains:   ResNet-8, 20 or 56 of He et al. (arXiv 1512.03385) for CIFAR-10, or ResNet-18, 34, 50 or 101.
// Data:     CIFAR-10, folders of PNG and JPEG files, or Fashion-MNIST, which Debian has as a package.
// Takes:    2 to 3 minutes an epoch for ResNet-20 on the 50,000 images of CIFAR-10, on two cores of a Xeon.
// Look at:  Training, which holds the Trainer, and images.cpp, which has the data and its augmentation; the
//           test accuracy after each epoch, and the CSV file of --log, which tools/chart.py draws.
// Try:      build/samples/resnet --data cifar-10-batches-bin --precision bf16 --log run.csv --checkpoints run
//           build/samples/resnet --weights net.safetensors --epochs 0 --predict cat.png
// More:     docs/guide/models.md; mezzo-run -n 2 build/samples/resnet ... trains in two processes.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <numbers>
#include <optional>

#include "mezzo/amp.h"
#include "mezzo/data/transforms.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/distributed/group.h"
#include "mezzo/distributed/state.h"
#include "mezzo/distributed/sync_batch_norm.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/resnet.h"
#include "mezzo/train/checkpoint.h"
#include "mezzo/train/metrics.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/stop_signals.h"
#include "mezzo/train/trainer.h"
#include "program.h"
#include "resnet/images.h"
#include "resnet/options.h"
#include "training.h"

namespace mz = mezzo;
using namespace resnet;

namespace {

const char* name_of(mz::nn::ResNetStem stem) {
    return stem == mz::nn::ResNetStem::cifar ? "cifar" : "imagenet";
}
const char* name_of(mz::nn::ResNetShortcut shortcut) {
    return shortcut == mz::nn::ResNetShortcut::padding ? "padding" : "projection";
}

mz::nn::ResNetConfig config_of(const Options& o, const ImageFormat& format) {
    std::int64_t depth = 0;
    program::parse_number(std::string_view(o.model).substr(std::string_view("resnet").size()), depth);
    mz::nn::ResNetConfig config = mz::nn::resnet_config(depth);
    config.in_channels = format.channels;
    config.num_classes = std::int64_t(format.classes.size());
    const bool cifar = o.stem.empty() ? format.size <= 64 : o.stem == "cifar";
    config.stem = cifar ? mz::nn::ResNetStem::cifar : mz::nn::ResNetStem::imagenet;
    if (!o.shortcut.empty())
        config.shortcut =
            o.shortcut == "padding" ? mz::nn::ResNetShortcut::padding : mz::nn::ResNetShortcut::projection;
    return config;
}

// Everything that shapes the training. A checkpoint is only resumed with the same values.
mz::io::Metadata settings_of(const Options& o, const Images& images, const mz::nn::ResNetConfig& config) {
    const auto shown = [](const auto& value) { return fmt::format("{}", value); };
    return {{"--model", o.model},
            {"--stem", name_of(config.stem)},
            {"--shortcut", name_of(config.shortcut)},
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
            {"--weights", o.weights},
            {"training data", images.description},
            {"classes", fmt::format("{}", fmt::join(images.format.classes, ", "))}};
}

mz::amp::InitializeOptions preset_options(const Options& o) {
    mz::amp::InitializeOptions options{.opt_level = o.opt_level};
    if (!o.keep_batchnorm.empty())
        options.keep_batchnorm_fp32 = o.keep_batchnorm == "yes" ? mz::amp::Choice::yes : mz::amp::Choice::no;
    if (o.loss_scale == "dynamic")
        options.loss_scale = mz::amp::dynamic_loss_scale;
    else
        program::parse_number(std::string_view(o.loss_scale), options.loss_scale);
    return options;
}

// Returns the factor of the learning rate after so many steps: a linear warm-up, then the schedule.
double rate_factor(const Options& o, std::int64_t total, std::int64_t steps) {
    const auto warmup = std::int64_t(o.warmup * double(total));
    if (steps < warmup) return double(steps + 1) / double(warmup);
    const double done =
        std::min(1.0, double(steps - warmup) / double(std::max<std::int64_t>(1, total - warmup)));
    if (o.schedule == "cosine") return 0.5 * (1 + std::cos(std::numbers::pi * done));
    if (o.schedule == "steps") return done < 0.5 ? 1 : done < 0.75 ? 0.1 : 0.01;
    return 1;
}

mz::Tensor number_right(const mz::Tensor& logits, const mz::Tensor& labels) {
    return mz::sum(mz::eq(mz::argmax(logits, 1), labels));
}

// Largest memory: of the process on the CPU, of mezzo's allocator on other devices.
double peak_bytes(mz::Device device) {
    if (device.type() != mz::DeviceType::cpu) return double(mz::memory_stats(device).max_allocated);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return double(usage.ru_maxrss) * 1024;
}

// Loss, accuracy and time of the steps of an epoch: part of each checkpoint. The sums stay on the device.
class EpochMeter {
public:
    EpochMeter(const mz::distributed::Group& group, mz::Device device)
        : group_(group), zero_(mz::zeros({}, {.dtype = mz::float64, .device = device})) {}

    // A batch of weight 0 repeats a sample so that each rank has one, and does not count.
    void add(const mz::Tensor& loss, const mz::Tensor& logits, const mz::data::Batch& batch) {
        const mz::NoGrad no_grad;
        ++steps_;
        if (batch.weight == 0) return;
        loss_ = loss_ + loss.to(mz::float64) * batch.weight;
        right_ = right_ + number_right(logits, batch.y).to(mz::float64);
        images_ += double(batch.x.size(0));
    }
    void start() { started_ = std::chrono::steady_clock::now(); }
    // Returns the metrics of all ranks, and begins the next epoch, whose time begins with start().
    mz::io::Metrics finish() {
        const std::vector<double> mean = means().to_vector<double>();
        loss_ = right_ = zero_;
        images_ = steps_ = seconds_ = 0;
        before_ = mean[5];
        start();
        return {{"train_accuracy", mean[1] / mean[2]},
                {"train_loss", mean[0] / mean[3]},
                {"images_per_s", mean[2] * group_.size() / mean[4]},
                {"seconds", mean[5]}};
    }

    mz::StateDict state_dict() const { return {{"means", means()}}; }
    void load_state_dict(const mz::StateDict& state) {
        const std::vector<double> mean = state.at("means").to_vector<double>();
        if (mean.size() != 6) throw std::runtime_error("its sums of the epoch are damaged");
        loss_ = zero_ + mean[0];
        right_ = zero_ + mean[1];
        images_ = mean[2];
        steps_ = mean[3];
        seconds_ = mean[4];
        before_ = mean[5] - seconds_;
        start();
    }

private:
    // Sums of the epoch and seconds of the training, as means over the ranks.
    mz::Tensor means() const {
        const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
        const std::vector<double> values{loss_.item<double>(), right_.item<double>(),   images_, steps_,
                                         seconds_ + now,       before_ + seconds_ + now};
        return group_.mean(mz::Tensor::from(values, {6}));
    }

    const mz::distributed::Group group_;
    mz::Tensor zero_, loss_ = zero_, right_ = zero_;
    double images_ = 0, steps_ = 0, seconds_ = 0;  // seconds: before the last start()
    double before_ = 0;                            // seconds of the epochs before
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

// Writers of --log and --tensorboard, of rank 0. A training that is not resumed replaces the log of another.
struct Logs {
    Logs(const Options& o, bool leader) {
        if (!leader) return;
        const bool resumes = o.resume && !mz::training::CheckpointFolder(o.checkpoints).files().empty();
        if (!o.log.empty() && !resumes) std::filesystem::remove(o.log);
        if (!o.log.empty()) writers.push_back(&csv.emplace(o.log));
        if (!o.tensorboard.empty()) writers.push_back(&tensorboard.emplace(o.tensorboard));
    }
    std::optional<mz::io::CsvWriter> csv;
    std::optional<mz::io::SummaryWriter> tensorboard;
    std::vector<mz::io::MetricWriter*> writers;
};

double metric(const mz::training::TrainingStatus& status, std::string_view name) {
    for (const auto& [key, value] : status.metrics)
        if (key == name) return value;
    return std::nan("");
}

class Training {
public:
    // Under O2 and O3 the model has 16-bit parameters afterwards.
    Training(const Options& o, const mz::distributed::Group& group, Images& images, mz::nn::ResNet& model)
        : o_(o),
          group_(group),
          images_(images),
          model_(model),
          optimizer_(
              model.named_parameters(),
              {.lr = o.lr, .momentum = o.momentum, .weight_decay = o.weight_decay, .nesterov = o.nesterov}),
          preset_(preset()),
          parallel_(model, group),
          schedule_(optimizer_, [this](std::int64_t done) { return rate_factor(o_, total_steps(), done); }),
          meter_(group, *o.device),
          bar_(stderr),
          logs_(o, group.leader()),
          trainer_(model, optimizer_, trainer_options()) {}

    // Returns the exit code: 0, or 128 + N after signal N.
    int run() {
        const auto loss = [this](const mz::data::Batch& batch) {
            const mz::Tensor logits = forward(batch.x);
            const mz::Tensor value =
                mz::cross_entropy(logits, batch.y, {.label_smoothing = o_.label_smoothing});
            meter_.add(value, logits, batch);
            return value;
        };
        if (trainer_.fit(images_.train, loss) != mz::training::Ended::stopped) return 0;
        fmt::print("stopped by a signal after step {}{}\n", trainer_.status().step,
                   o_.checkpoints.empty() ? "" : "; --resume goes on from " + o_.checkpoints);
        return 128 + mz::training::StopSignals::last();
    }

private:
    std::optional<mz::amp::Handle> preset() {
        if (o_.opt_level.empty()) return std::nullopt;
        return mz::amp::initialize(model_, optimizer_, preset_options(o_));
    }

    mz::training::TrainerOptions trainer_options() {
        using Status = mz::training::TrainingStatus;
        return {.epochs = o_.epochs,
                .max_steps = o_.max_steps,
                .precision = program::trainer_precision(o_.precision),
                .fp8 = {.least_size = 16},
                .preset = preset_ ? &*preset_ : nullptr,
                .scheduler = &schedule_,
                .parallel = &parallel_,
                .evaluate = [this] { return evaluate(); },
                .log_every = o_.log_every,
                .logs = logs_.writers,
                .progress = group_.leader() ? &bar_ : nullptr,
                .on_start = [this](const Status& now) { begin(now); },
                .on_epoch = [this](const Status& now) { print_epoch(now); },
                .checkpoints = o_.checkpoints,
                .checkpoint_every = o_.checkpoint_every,
                .resume = o_.resume,
                .others = {{"epoch", meter_}},
                .settings = settings_of(o_, images_, model_.config)};
    }

    std::int64_t total_steps() const {
        const std::int64_t steps = o_.epochs * images_.train.size();
        return o_.max_steps > 0 ? std::min(steps, o_.max_steps) : steps;
    }

    mz::Tensor forward(const mz::Tensor& x) {
        return preset_ ? preset_->forward(model_, x) : model_(x).to(mz::float32);
    }

    void begin(const mz::training::TrainingStatus& now) {
        if (now.step > 0) fmt::print("resumed at epoch {}, step {}\n", now.epoch + 1, now.step);
        meter_.start();
    }

    // Each rank has a part of the test images.
    mz::io::Metrics evaluate() {
        const mz::io::Metrics of_training = meter_.finish();
        mz::Tensor right = mz::zeros({}, {.dtype = mz::int64, .device = *o_.device});
        for (const mz::data::Batch& batch : images_.test)
            if (batch.weight > 0) right = right + number_right(forward(batch.x), batch.y);
        group_.all_reduce_(right);
        const std::int64_t batches = images_.train.size(), done = trainer_.status().step;
        mz::io::Metrics metrics{
            {"test_accuracy", double(right.item<std::int64_t>()) / double(images_.test_count)}};
        metrics.insert(metrics.end(), of_training.begin(), of_training.end());
        metrics.emplace_back("epoch", double((done + batches - 1) / batches));
        metrics.emplace_back("peak_bytes", peak_bytes(*o_.device));
        meter_.start();  // the time of the evaluation does not count
        return metrics;
    }

    void print_epoch(const mz::training::TrainingStatus& now) {
        bar_.end_line();
        fmt::print(
            "epoch {:.0f}: loss {:.4f}, training accuracy {:.2f} %, test accuracy {:.2f} %, {:.0f} "
            "images/s\n",
            metric(now, "epoch"), metric(now, "train_loss"), 100 * metric(now, "train_accuracy"),
            100 * metric(now, "test_accuracy"), metric(now, "images_per_s"));
        std::fflush(stdout);
    }

    const Options& o_;
    const mz::distributed::Group group_;
    Images& images_;
    mz::nn::ResNet& model_;
    mz::optim::SGD optimizer_;
    std::optional<mz::amp::Handle> preset_;  // of --opt-level
    mz::distributed::DataParallel parallel_;
    mz::optim::LambdaLR schedule_;
    EpochMeter meter_;
    mz::training::ProgressBar bar_;
    Logs logs_;
    mz::training::Trainer trainer_;
};

// If a training follows, weights for other classes leave the last layer as it is.
void load_weights(const Options& o, mz::nn::ResNet& model) {
    const mz::io::LoadReport report =
        mz::io::load_weights(model, mz::io::load_state_dict_file(o.weights),
                             {.rename = [](const std::string& name) { return mz::io::resnet_name(name); },
                              .strict = o.epochs == 0,
                              .ignore_mismatched = o.epochs > 0});
    fmt::print("{}\n{}\n", o.weights, report.to_string());
    if (report.loaded.empty()) throw std::runtime_error(o.weights + ": holds no weights of this model");
}

// Sets an option that was not given to the value in the metadata of --weights. Unknown values, which another
// program has written, are ignored.
void take_stored(const char* option, std::string& value, const std::vector<std::string>& known,
                 const Options& o, const mz::io::Metadata& metadata) {
    for (const auto& [name, stored] : metadata) {
        if ("--" + name != option || std::find(known.begin(), known.end(), stored) == known.end()) continue;
        if (!value.empty() && value != stored)
            throw std::runtime_error(
                fmt::format("{}: {}, but the weights in {} are of {}", option, value, o.weights, stored));
        value = stored;
    }
}

void save(const Options& o, const ImageFormat& format, const mz::nn::ResNet& model) {
    mz::io::Metadata metadata = metadata_of(format);
    metadata.emplace_back("model", o.model);
    metadata.emplace_back("stem", name_of(model.config.stem));
    metadata.emplace_back("shortcut", name_of(model.config.shortcut));
    mz::io::save_safetensors(o.save, model.state_dict(), metadata);
}

// Prints class, probability and name of each file.
void predict(const Options& o, const ImageFormat& format, mz::nn::ResNet& model) {
    const mz::NoGrad no_grad;
    const std::string of_level = o.opt_level == "O1" ? "fp16" : "fp32";
    const mz::amp::Autocast scope(program::autocast(o.opt_level.empty() ? o.precision : of_level));
    model.eval();
    for (const std::string& file : o.predict) {
        const mz::Tensor image = read_one(file, format).to(*o.device).to(model.conv1.weight.dtype());
        const std::vector<double> p = mz::softmax(model(image).to(mz::float32)).to_vector<double>();
        const auto best = std::max_element(p.begin(), p.end());
        fmt::print("{}\t{:.4f}\t{}\n", format.classes[std::size_t(best - p.begin())], *best, file);
    }
}

// Finds what cannot be written or read before the training, not after it.
void check_files(const Options& o, bool leader) {
    if (!leader) return;
    if (!o.save.empty()) program::require_file("--save", o.save);
    if (!o.log.empty()) program::require_file("--log", o.log);
    if (!o.checkpoints.empty()) program::require_folder("--checkpoints", o.checkpoints);
    if (!o.tensorboard.empty()) program::require_folder("--tensorboard", o.tensorboard);
}

void print_header(const Options& o, const mz::distributed::Group& group, const Images& images,
                  const mz::nn::ResNet& model) {
    fmt::print("{} on {}: {} images of {} x {}, {} for tests, {} classes\n", o.model, images.name,
               images.train_count, images.format.size, images.format.size, images.test_count,
               images.format.classes.size());
    fmt::print("{:.2f} M parameters, {}, batch {}, seed {}\n{}\n", double(model.num_parameters()) * 1e-6,
               o.arithmetic(), o.batch, o.seed, mz::hardware_name(*o.device));
    if (group.size() > 1) fmt::print("{} ranks share each batch\n", group.size());
    std::fflush(stdout);
}

// Returns the exit code.
int run(Options o) {
    const mz::distributed::Group group = mz::distributed::init();
    if (o.threads > 0) mz::set_num_threads(o.threads);
    if (!o.device) o.device = group.device();
    if (!group.leader() && std::freopen("/dev/null", "w", stdout) == nullptr)  // rank 0 prints for all
        throw std::runtime_error(std::string("/dev/null: ") + std::strerror(errno));
    mz::distributed::manual_seed(group, o.seed);
    check_files(o, group.leader());

    const mz::io::Metadata stored =
        o.weights.empty() ? mz::io::Metadata() : mz::io::SafeTensors(o.weights).metadata();
    take_stored("--model", o.model, model_names(), o, stored);
    take_stored("--stem", o.stem, {"cifar", "imagenet"}, o, stored);
    take_stored("--shortcut", o.shortcut, {"projection", "padding"}, o, stored);
    if (o.model.empty()) o.model = "resnet20";
    ImageFormat format = format_of(stored);
    if (o.epochs == 0 && !o.weights.empty() && format.classes.empty() && o.data.empty())
        throw std::runtime_error("--weights: " + o.weights + " has no names of classes; pass --data");
    std::optional<Images> images;
    if (o.epochs > 0 || format.classes.empty()) {
        images = load_images(o, group.shard());
        format = images->format;
    }
    for (const std::string& file : o.predict) static_cast<void>(read_one(file, format));  // errors come early

    mz::nn::ResNet model(config_of(o, format));
    if (!o.weights.empty()) load_weights(o, model);
    model.to(*o.device);
    if (o.sync_bn) mz::distributed::convert_sync_batchnorm(model, group);
    if (o.epochs > 0) {
        print_header(o, group, *images, model);
        if (const int code = Training(o, group, *images, model).run(); code != 0) return code;
    }
    if (!group.leader()) return 0;
    if (!o.save.empty()) save(o, format, model);
    predict(o, format, model);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("resnet", [&] {
        Options options;
        const int code = parse_options(argc, argv, options);
        return code < 0 ? run(options) : code;
    });
}
