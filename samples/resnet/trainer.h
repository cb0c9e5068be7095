// The training loop of resnet: SGD in mixed precision, schedule, log, checkpoints at any step and exact
// resumption.
#pragma once

#include <mezzo/mezzo.h>

#include "resnet/images.h"
#include "resnet/options.h"
#include "training/settings.h"

namespace resnet {

// Returns options by their names, and digests of the images and of the weights that the training starts from.
training::Settings settings_of(const Options& options, const Images& images, const mezzo::nn::ResNet& model);

// Trains from the start, or from the position in the checkpoint of the options, which may be of another
// number of ranks. Returns false if SIGTERM or SIGINT has ended it after a step, for which there is a
// checkpoint if the options name one. Under O2 and O3 the model has 16-bit parameters afterwards.
[[nodiscard]] bool train(const Options& options, const mezzo::distributed::Group& group,
                         const training::Settings& settings, Images& images, mezzo::nn::ResNet& model);

// Returns the logits of images in eval mode.
mezzo::Tensor logits_of(const Options& options, mezzo::nn::ResNet& model, const mezzo::Tensor& images);

}  // namespace resnet
