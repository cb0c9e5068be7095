// Self-checks of CUDA's optimized kernels (kernels/self_check.h), on the current device.
#pragma once

#include "kernels/self_check.h"

namespace mezzo::cuda {

void check_attention(const SelfCheck& self_check);
void check_attention_grad(const SelfCheck& self_check);
void check_convolution(const SelfCheck& self_check);
void check_convolution_input_grad(const SelfCheck& self_check);
void check_convolution_weight_grad(const SelfCheck& self_check);
void check_bias_gradients(const SelfCheck& self_check);
void check_layers(const SelfCheck& self_check);
void check_relu_masks(const SelfCheck& self_check);
void check_prefetch(const SelfCheck& self_check);

}  // namespace mezzo::cuda
