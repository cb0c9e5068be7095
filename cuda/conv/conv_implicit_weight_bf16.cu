// Gradients of convolutions with respect to the weight on Tensor Cores; the kernel for bfloat16.
#include "cuda/conv/conv_implicit_weight.cuh"

namespace mezzo::cuda::weight_product {

template void run_tile<bfloat16_t>(const WeightProduct& p, ConvTile tile, std::int64_t parts);

}  // namespace mezzo::cuda::weight_product
