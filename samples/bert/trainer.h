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

// Position of a stage in the training: part of the checkpoint.
struct Position {
    std::int64_t epoch = 0;  // of the stage
    std::int64_t batch = 0;  // next batch of the epoch
    std::int64_t step = 0;   // optimizer steps tried in this stage

    mezzo::StateDict state_dict() const;
    void load_state_dict(const mezzo::StateDict& state);
};

struct Stage {
    std::int64_t number = 0;
    const char* name = "";
    std::int64_t epochs = 1;
    std::int64_t max_steps = 0;  // 0: all epochs
    double lr = 2e-5;
    mezzo::nn::Module* model = nullptr;
    // Number of batches of an epoch, and loss of this rank's part of a batch; the mean over the ranks is the
    // batch's loss. Both may be called in any order.
    std::function<std::int64_t(std::int64_t epoch)> batches = {};
    std::function<mezzo::Tensor(std::int64_t epoch, std::int64_t batch)> loss = {};
    std::function<std::int64_t(std::int64_t epoch, std::int64_t batch)> samples = {};  // number of texts
    std::function<void(std::int64_t epoch, double loss, double seconds)> epoch_done = {};
    std::function<void(std::int64_t step, double loss)> step_done = {};  // may be empty
};

// Trains one stage, from its start or from the position in the checkpoint of the options, which may be of
// another number of ranks. Returns false if SIGTERM or SIGINT has ended it after a step, for which there is a
// checkpoint if the options name one.
[[nodiscard]] bool train(const Options& options, const mezzo::distributed::Group& group,
                         const training::Settings& settings, const Stage& stage);

// Returns the stage of the checkpoint; 0 if there is none or it is not to be resumed. Throws
// std::runtime_error if it belongs to a training with other settings.
std::int64_t stage_to_resume(const Options& options, const mezzo::distributed::Group& group,
                             const training::Settings& settings);

}  // namespace bert
