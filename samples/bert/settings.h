// The settings that shape a training of bert_classifier.
#pragma once

#include "bert/options.h"
#include "training/settings.h"

namespace bert {

struct Setup;

// Returns options by their names, the model's sizes, and digests of the texts, vocabulary and weights that
// the training starts from.
training::Settings settings_of(const Options& options, const Setup& setup, const mezzo::StateDict& weights);

}  // namespace bert
