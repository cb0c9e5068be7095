#include "mezzo/eval_mode.h"

namespace mezzo::nn {

EvalMode::EvalMode(Module& model) {
    for (const auto& [path, module] : model.named_modules()) modes_.emplace_back(module, module->training());
    model.eval();
}

// train() also sets a module's children, whose own modes come later in the list.
EvalMode::~EvalMode() {
    for (const auto& [module, training] : modes_) module->train(training);
}

}  // namespace mezzo::nn
