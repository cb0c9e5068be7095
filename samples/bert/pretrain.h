// The first stage: predicting masked tokens (Devlin et al., arXiv 1810.04805, section 3.1).
#pragma once

#include "bert/setup.h"

namespace bert {

// Trains a masked language model on the texts; the classifier starts from its encoder. Returns false if a
// signal has ended it.
[[nodiscard]] bool pretrain(const Options& options, const Setup& setup, const Samples& samples,
                            mezzo::nn::BertForMaskedLM& model);

}  // namespace bert
