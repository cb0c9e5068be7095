// The CPU's kernels: the list of each family, which is defined in the file of its kernels, and the kernels
// that other kernels call.
#pragma once

#include "kernels/copy.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_list.h"
#include "kernels/matmul.h"
#include "kernels/reduce.h"

namespace mezzo::cpu_kernels {

extern const KernelList attention_grad_list, attention_list, batch_norm_list, class_loss_list, conv_list,
    copy_list, ctc_list, elementwise_list, group_norm_list, index_list, interpolate_list, loss_list,
    matmul_list, moments_list, norm_list, pad_list, pointwise_list, pool_list, quantize_list, random_list,
    range_list, recurrent_list, reduce_list, rowwise_list, scan_list, sort_list;

Kernel<kernels::ActivationGrad> activation_grad;
Kernel<kernels::Cast> cast;
Kernel<kernels::ColumnSum> column_sum;
Kernel<kernels::MatMul> matmul;
Kernel<kernels::gelu_grad> gelu_grad;
Kernel<kernels::gelu_tanh_grad> gelu_tanh_grad;
Kernel<kernels::relu_grad> relu_grad;

}  // namespace mezzo::cpu_kernels
