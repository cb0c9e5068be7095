// The command line of resnet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/mezzo.h"

namespace resnet {

struct Options {
    // Empty: taken from the metadata of --weights, or else resnet20, the stem that fits the size of the
    // images, and the model's own shortcut.
    std::string model, stem, shortcut;
    std::string data;             // CIFAR-10 files or a folder of images; empty: Fashion-MNIST
    std::int64_t image_size = 0;  // 0: 32, or 224 for a folder of images
    std::int64_t limit = 0;       // training images; 0: all
    bool augment = true;
    std::string precision = "fp32";
    std::string opt_level, keep_batchnorm, loss_scale;  // empty: no preset, or the preset's own values
    std::int64_t epochs = 10, max_steps = 0, batch = 128;
    double lr = 0.15, momentum = 0.9, weight_decay = 5e-4, warmup = 0.1, label_smoothing = 0;
    bool nesterov = true, sync_bn = false;
    std::string schedule = "cosine";
    std::uint64_t seed = 1;
    std::optional<mezzo::Device> device;  // none: the rank's
    int threads = 0;                      // of the CPU; 0: as many as the rank has processors
    std::string weights, save, checkpoints, log, tensorboard;
    std::int64_t checkpoint_every = 0;  // steps; 0: after every epoch only
    bool resume = false;
    std::vector<std::string> predict;  // image files
    std::int64_t log_every = 10;

    // The precision, such as "fp16", or the preset, such as "O2".
    const std::string& arithmetic() const { return opt_level.empty() ? precision : opt_level; }
};

// Names that --model accepts.
const std::vector<std::string>& model_names();

// Returns -1 to continue, or the exit code of a program that has printed help or an error.
int parse_options(int argc, char** argv, Options& options);

}  // namespace resnet
