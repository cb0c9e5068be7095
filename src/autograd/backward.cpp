// Public functions that run a backward pass, and passes inside of a running one.
#include "autograd/engine.h"
#include "mezzo/autograd.h"

namespace mezzo {

Tensors nested_backward(const Tensors& outputs, const Tensors& grad_outputs, const Tensors& inputs) {
    GradTargets targets(inputs);
    Engine(&targets, false, false, thread_state.engine).run(outputs, grad_outputs);
    Tensors result;
    for (std::size_t i = 0; i < inputs.size(); ++i) result.push_back(targets.gradient(i));
    return result;
}

namespace autograd {

Tensors grad(const Tensors& outputs, const Tensors& inputs, const GradOptions& options) {
    check(options.grad_outputs.empty() || options.grad_outputs.size() == outputs.size(), ErrorKind::value,
          "grad: ", options.grad_outputs.size(), " grad_outputs for ", outputs.size(), " outputs");
    GradTargets targets(inputs);
    Engine(&targets, options.create_graph, options.retain_graph || options.create_graph, nullptr)
        .run(outputs, options.grad_outputs);
    Tensors result;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        result.push_back(targets.gradient(i));
        check(result[i].defined() || options.allow_unused, ErrorKind::state,
              "grad: no output depends on input ", i, "; pass allow_unused = true if that is meant");
    }
    return result;
}

void backward(const Tensors& outputs, const GradOptions& options) {
    check(options.grad_outputs.empty() || options.grad_outputs.size() == outputs.size(), ErrorKind::value,
          "backward: ", options.grad_outputs.size(), " grad_outputs for ", outputs.size(), " outputs");
    Engine(nullptr, options.create_graph, options.retain_graph || options.create_graph, nullptr)
        .run(outputs, options.grad_outputs);
}

}  // namespace autograd

void Tensor::backward() const { autograd::backward({*this}); }

void Tensor::backward(const BackwardOptions& options) const {
    autograd::backward({*this},
                       {.grad_outputs = options.gradient.defined() ? Tensors{options.gradient} : Tensors{},
                        .retain_graph = options.retain_graph,
                        .create_graph = options.create_graph});
}

}  // namespace mezzo
