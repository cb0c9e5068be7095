// Self-checks of CUDA's optimized kernels (kernels/proof.h), on the current device.
#pragma once

#include "kernels/proof.h"

namespace mezzo::cuda {

void prove_attention(const Proof& proof);
void prove_attention_grad(const Proof& proof);
void prove_convolution(const Proof& proof);
void prove_convolution_input_grad(const Proof& proof);
void prove_convolution_weight_grad(const Proof& proof);
void prove_bias_gradients(const Proof& proof);
void prove_layers(const Proof& proof);
void prove_relu_masks(const Proof& proof);
void prove_prefetch(const Proof& proof);

}  // namespace mezzo::cuda
