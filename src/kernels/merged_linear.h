// Merged linear layers, such as Q, K and V: several weights, one input.
#pragma once

#include <cstdint>

#include "core/memory/flat_view.h"
#include "core/rows.h"
#include "kernels/matmul.h"

namespace mezzo::kernels {

// x [.., in], `parts` weights [out_i, in], and as many biases [out_i] or none -> the x weight_i^T + bias_i
// concatenated, [.., sum of out_i].
struct MergedLinear {
    static constexpr const char* name = "merged_linear";
    int parts = 1;
};

// The columns from `first` on of the rows of a contiguous y, as a matrix.
inline Tensor columns_of(const Tensor& y, std::int64_t first, std::int64_t count) {
    const Tensor rows = as_rows(y);
    return make_tensor(rows->storage, {rows->shape[0], count}, rows->strides, rows->offset + first,
                       rows->dtype);
}

// Implements the kernel by a backend's kernel of one linear layer, whose result may have gaps between its
// rows.
inline void run_merged_linear(In in, const MergedLinear& at, Out out, Kernel<Linear>& linear) {
    const In weights = in.subspan(1, std::size_t(at.parts)), biases = in.subspan(1 + weights.size());
    const Tensor weight = as_one(weights), bias = as_one(biases);
    if (weight.defined() && bias.defined() == !biases.empty()) {
        const Tensor given[] = {in[0], weight, bias};
        return linear(In(given), {}, out);
    }
    std::int64_t first = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const std::int64_t count = weights[i]->shape[0];
        const Tensor given[] = {in[0], weights[i], biases.empty() ? Tensor() : biases[i]};
        const Tensor columns[] = {columns_of(out[0], first, count)};
        linear(In(given), {}, Out(columns));
        first += count;
    }
}

}  // namespace mezzo::kernels
