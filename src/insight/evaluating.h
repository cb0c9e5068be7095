// A model as it is looked at: in eval mode, and with gradients, so that views have histories and are told.
#pragma once

#include "mezzo/autograd.h"
#include "mezzo/eval_mode.h"

namespace mezzo::insight {

// The training flags of all modules are off while it lives, and requires_grad of all parameters is on.
class [[nodiscard]] Evaluating {
public:
    explicit Evaluating(nn::Module& model) : mode_(model) {
        for (const Tensor& p : model.parameters())
            if (!p.requires_grad()) frozen_.push_back(p);
        model.unfreeze();
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
