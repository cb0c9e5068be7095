// Scope that prepares a model for tracing: eval mode, and gradients on, so that views have histories and
// observers are notified of them.
#pragma once

#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/eval_mode.h"

namespace mezzo::insight {

// Turns off the training flags of all modules, and turns on requires_grad of all parameters but 8-bit
// weights, while it lives.
class [[nodiscard]] Evaluating {
public:
    explicit Evaluating(nn::Module& model) : mode_(model) {
        for (const Tensor& p : model.parameters()) {
            if (p.requires_grad() || is_quantized(p)) continue;
            frozen_.push_back(p);
            p.set_requires_grad(true);
        }
    }
    ~Evaluating() {
        for (const Tensor& p : frozen_) p.set_requires_grad(false);
    }
    Evaluating(const Evaluating&) = delete;
    Evaluating& operator=(const Evaluating&) = delete;

private:
    const EnableGrad recorded_;
    nn::EvalMode mode_;
    Tensors frozen_;
};

}  // namespace mezzo::insight
