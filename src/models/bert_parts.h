// Helpers of the encoder and the heads of BERT.
#pragma once

#include "mezzo/models/bert.h"

namespace mezzo::nn {

double classifier_dropout(const BertConfig& config);
// The activation that hidden_act names. Throws Error(value) for an unknown name.
BertActivation activation_of(const BertConfig& config);
// activation(dense(x)), in one op where linear() has that activation.
Tensor activated_linear(const Linear& dense, BertActivation activation, const Tensor& x);

}  // namespace mezzo::nn
