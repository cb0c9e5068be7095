// Products of many matrices with one, which is packed once:
//
//   RepeatedProduct multiply;
//   for (...) multiply(a, b, beta, y);  // y = a b + beta y; b is the same each time
#pragma once

#include "core/tensor_impl.h"

namespace mezzo::cpu {

struct GemmKernels;

class RepeatedProduct {
public:
    void operator()(const Tensor& a, const Tensor& b, double beta, const Tensor& y);

private:
    Tensor packed_;                         // Gemm::b_packed, from the second product on
    const GemmKernels* kernels_ = nullptr;  // those that read it
    std::int64_t calls_ = 0;
};

}  // namespace mezzo::cpu
