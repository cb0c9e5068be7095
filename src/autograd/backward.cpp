// Public functions that run a backward pass, and passes inside of a running one.
#include "autograd/engine.h"
#include "autograd/seed.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo {

Tensor root_gradient(const Tensor& output, const Tensors& grad_outputs, std::size_t i) {
    check(output.defined() && tracked(output), ErrorKind::state, "backward: output ", i,
          " does not require grad; it has no recorded history");
    if (i < grad_outputs.size() && grad_outputs[i].defined()) {
        const Tensor& given = grad_outputs[i];
        check(given.shape() == output.shape(), ErrorKind::shape, "backward: the gradient has shape ",
              given.shape(), ", the output ", output.shape());
        check(given.device() == output.device(), ErrorKind::device, "backward: the gradient is on ",
              given.device(), ", the output on ", output.device());
        return given.dtype() == output.dtype() ? given : cast(given, output.dtype());
    }
    check(output.numel() == 1, ErrorKind::shape, "backward: the output has shape ", output.shape(),
          "; only a one-element output has an implied gradient, pass one");
    return implied_seed(output);
}

Tensors nested_backward(const Tensors& outputs, const Tensors& grad_outputs, const Tensors& inputs) {
    GradTargets targets(inputs);
    Engine(&targets, false, false, running_backward()).run(outputs, grad_outputs);
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
