#include "resnet/options.h"

#include "program.h"

namespace resnet {

namespace {

using program::in_range;
using program::not_negative;
using program::positive;

void add_model_options(CLI::App& app, Options& o) {
    app.add_option("--model", o.model,
                   "ImageNet's four sizes, or CIFAR's three; default: as --weights says, else resnet20")
        ->check(CLI::IsMember(model_names()));
    app.add_option(
           "--stem", o.stem,
           "how it begins: a 3x3 convolution, or 7x7 and a max-pool; default: as --weights says, else cifar "
           "for images of up to 64 pixels")
        ->check(CLI::IsMember({"cifar", "imagenet"}));
    app.add_option("--shortcut", o.shortcut,
                   "where the shape changes; default: as --weights says, else padding in CIFAR's three sizes "
                   "(option A "
                   "of the paper) and projection (option B) in the others")
        ->check(CLI::IsMember({"projection", "padding"}));
    app.add_option("--weights", o.weights,
                   "start from this safetensors file: torchvision's names, or those of --save");
}

void add_data_options(CLI::App& app, Options& o) {
    app.add_option("--data", o.data,
                   "folder of CIFAR-10 binary files, or of the folders train and val (or test) with a folder "
                   "of PNG or JPEG files per class; default: Fashion-MNIST in 32 x 32");
    app.add_option("--image-size", o.image_size,
                   "height and width; 0: 32, or 224 for files. CIFAR-10 and Fashion-MNIST have 32")
        ->transform(in_range<std::int64_t>(0, 4096));
    app.add_option("--limit", o.limit, "use only so many training images; 0: all")->transform(not_negative());
    app.add_flag("--augment,!--no-augment", o.augment, "crop and mirror the training images at random");
}

void add_precision_options(CLI::App& app, Options& o) {
    CLI::Option* const precision =
        program::add_precision(app, o.precision)
            ->description(
                "fp32; bf16: autocast; fp16: autocast and gradient scaler; fp8: bf16, and the last layer in "
                "float8 if the number of classes is a multiple of 16");
    CLI::Option* const level =
        app.add_option("--opt-level", o.opt_level,
                       "instead: a preset in the style of NVIDIA Apex. O0 float32, O1 autocast, O2 float16 "
                       "with master weights and float32 batch norms, O3 float16")
            ->check(CLI::IsMember({"O0", "O1", "O2", "O3"}))
            ->excludes(precision);
    app.add_option("--keep-batchnorm", o.keep_batchnorm, "with O2 or O3: batch norms in float32")
        ->check(CLI::IsMember({"yes", "no"}))
        ->needs(level);
    app.add_option("--loss-scale", o.loss_scale, "with a preset: \"dynamic\" or a number")->needs(level);
}

void add_training_options(CLI::App& app, Options& o) {
    app.add_option("--epochs", o.epochs, "passes over the training images; 0: none")
        ->transform(not_negative());
    app.add_option("--max-steps", o.max_steps, "stop after this many steps; 0: do not")
        ->transform(not_negative());
    app.add_option("--batch", o.batch, "images per step, over all ranks")->transform(positive());
    app.add_option("--lr", o.lr, "peak learning rate (SGD)")->transform(program::learning_rate());
    app.add_option("--momentum", o.momentum)->transform(in_range(0.0, 1.0));
    app.add_option("--weight-decay", o.weight_decay, "of all parameters")->transform(in_range(0.0, 1.0));
    app.add_flag("--nesterov,!--no-nesterov", o.nesterov, "Nesterov's momentum");
    app.add_option("--schedule", o.schedule,
                   "of the learning rate after the warm-up; steps: a tenth after half and three quarters")
        ->check(CLI::IsMember({"cosine", "steps", "constant"}));
    app.add_option("--warmup", o.warmup, "share of the steps in which the learning rate rises")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--label-smoothing", o.label_smoothing, "of the cross-entropy")
        ->transform(in_range(0.0, 1.0));
    app.add_flag("--sync-bn", o.sync_bn,
                 "under mezzo-run, batch norms take the statistics of all ranks' images");
    program::add_seed(app, o.seed, "of weights, order and augmentation");
}

void add_file_options(CLI::App& app, Options& o) {
    app.add_option("--checkpoints", o.checkpoints, "folder for checkpoints of the training");
    app.add_option("--checkpoint-every", o.checkpoint_every,
                   "steps between checkpoints besides the epochs' ends")
        ->transform(not_negative());
    app.add_flag(
           "--resume", o.resume,
           "go on from the newest checkpoint, if there is one; what shapes the training must be as it was")
        ->needs("--checkpoints");
    app.add_option("--save", o.save, "write the weights and the names of the classes into this file");
    app.add_option("--predict", o.predict, "at the end, print class and probability of these image files");
    app.add_option("--log", o.log, "write a CSV file that tools/chart.py draws");
    app.add_option("--tensorboard", o.tensorboard, "write an event file for TensorBoard into this folder");
    app.add_option("--log-every", o.log_every, "steps between reports")->transform(positive());
}

void check_options(const Options& o) {
    using CLI::ValidationError;
    if (o.epochs == 0 && o.save.empty() && o.predict.empty())
        throw ValidationError("--epochs", "0, and nothing else to do; pass --predict FILE or --save FILE");
    if (!o.keep_batchnorm.empty() && o.opt_level != "O2" && o.opt_level != "O3")
        throw ValidationError("--keep-batchnorm", "has a meaning with --opt-level O2 or O3 alone");
    double scale = 0;
    const bool number =
        program::parse_number(std::string_view(o.loss_scale), scale) && scale > 0 && scale < 1e9;
    if (!o.loss_scale.empty() && o.loss_scale != "dynamic" && !number)
        throw ValidationError("--loss-scale",
                              "\"" + o.loss_scale + "\" is neither \"dynamic\" nor a number from 0 to 1e9");
}

}  // namespace

const std::vector<std::string>& model_names() {
    static const std::vector<std::string> names{"resnet18", "resnet34", "resnet50", "resnet101",
                                                "resnet8",  "resnet20", "resnet56"};
    return names;
}

int parse_options(int argc, char** argv, Options& o) {
    CLI::App app{"Trains a ResNet on images."};
    app.option_defaults()->always_capture_default();
    add_data_options(app, o);
    add_model_options(app, o);
    add_precision_options(app, o);
    add_training_options(app, o);
    add_file_options(app, o);
    std::string device;
    int threads = mezzo::num_threads();
    program::add_device(app, device);
    program::add_threads(app, threads);
    app.callback([&o] { check_options(o); });
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    if (!device.empty()) o.device = mezzo::parse_device(device.c_str());
    if (app.count("--threads") > 0) o.threads = threads;
    o.nesterov = o.nesterov && o.momentum > 0;
    return -1;
}

}  // namespace resnet
