// The lists of CUDA's kernels, one per file, and the kernels that other kernels call.
#pragma once

#include "kernels/copy.h"
#include "kernels/kernel_list.h"
#include "kernels/matmul.h"
#include "kernels/random.h"
#include "kernels/reduce.h"

namespace mezzo::cuda_kernels {

extern const KernelList activation_grad_list, attention_list, batch_norm_grad_list, batch_norm_list,
    binary_list, compare_list, conv_list, copy_list, cross_entropy_list, extremes_list, fp8_list, gate_list,
    group_norm_list, index_list, interpolate_list, loss_bias_grad_list, loss_list, matmul_list,
    norm_grad_list, norm_list, order_list, pad_list, pool_list, random_list, range_list, recurrent_list,
    reduce_list, softmax_list, unary_list;

Kernel<kernels::Cast> cast;
Kernel<kernels::ColumnSum> column_sum;
Kernel<kernels::Dropout> dropout;
Kernel<kernels::Fill> fill;
Kernel<kernels::MatMul> matmul;
Kernel<kernels::Mean> mean;

}  // namespace mezzo::cuda_kernels
