// EvalMode: scope for an evaluation during training.
//
//   {
//       const nn::EvalMode scope(net);  // no dropout
//       const NoGrad no_grad;
//       y = net(x);
//   }
#pragma once

#include <utility>
#include <vector>

#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Puts a module and all its submodules into eval mode until the end of the scope, and restores the mode of
// each then, also after an exception. The modules must outlive it.
class [[nodiscard]] EvalMode {
public:
    [[nodiscard]] explicit EvalMode(Module& model);
    ~EvalMode();
    EvalMode(const EvalMode&) = delete;
    EvalMode& operator=(const EvalMode&) = delete;

private:
    std::vector<std::pair<Module*, bool>> modes_;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
