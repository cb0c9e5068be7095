// An evaluation in the middle of a training.
#pragma once

#include <utility>
#include <vector>

#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Puts a module and all inside of it into eval mode until the end of the scope, also when it is left by an
// exception; then each of them is in the mode that it had. The modules must outlive it.
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
