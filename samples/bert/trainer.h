// The training loop that both stages share: mixed precision, accumulation, warm-up and decay, clipping,
// checkpoints at any step and exact resumption.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bert/options.h"
#include "bert/settings.h"
#include "training/progress.h"

namespace bert {

// Where a training stands; all of it is in the checkpoint.
struct Position {
    std::int64_t stage = 0;  // 0 pre-training, 1 fine-tuning
    std::int64_t epoch = 0;  // of the stage
    std::int64_t batch = 0;  // next batch of the epoch
    std::int64_t step = 0;   // optimizer steps tried in this stage
};

struct Stage {
    std::int64_t number = 0;
    const char* name = "";
    std::int64_t epochs = 1;
    std::int64_t max_steps = 0;  // 0: all epochs
    double lr = 2e-5;
    mezzo::nn::Module* model = nullptr;
    // The number of batches of an epoch, and the loss of one of them. Both may be called in any order.
    std::function<std::int64_t(std::int64_t epoch)> batches = {};
    std::function<mezzo::Tensor(std::int64_t epoch, std::int64_t batch)> loss = {};
    std::function<std::int64_t(std::int64_t epoch, std::int64_t batch)> samples = {};  // texts in it
    std::function<void(std::int64_t epoch, double loss, double seconds)> epoch_done = {};
    std::function<void(std::int64_t step, double loss)> step_done = {};  // may be empty
};

// Trains one stage, from its start or from the position in the checkpoint that the options name.
void train(const Options& options, const training::Settings& settings, const Stage& stage);

// The stage that the checkpoint is in; 0 if there is none or it is not to be resumed. Throws
// std::runtime_error when it belongs to a training with other settings.
std::int64_t stage_to_resume(const Options& options, const training::Settings& settings);

}  // namespace bert
