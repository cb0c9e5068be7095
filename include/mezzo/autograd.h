// Automatic differentiation: grad(), scopes, hooks, checkpointing and user-defined functions.
//
//   const Tensor slope = autograd::grad({loss}, {weight})[0];  // d loss / d weight; grad() is unchanged
//   {
//       const NoGrad no_grad;
//       y = net(x);  // records no history
//   }
#pragma once

#include "mezzo/callback.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// While alive, ops on this thread record no history. Give it a name: a temporary, NoGrad();, ends at once.
class [[nodiscard]] NoGrad {
public:
    [[nodiscard]] NoGrad();
    ~NoGrad();
    NoGrad(const NoGrad&) = delete;
    NoGrad& operator=(const NoGrad&) = delete;

private:
    bool previous_;
};

// While alive, ops on this thread record history even inside a NoGrad scope.
class [[nodiscard]] EnableGrad {
public:
    [[nodiscard]] EnableGrad();
    ~EnableGrad();
    EnableGrad(const EnableGrad&) = delete;
    EnableGrad& operator=(const EnableGrad&) = delete;

private:
    bool previous_;
};

[[nodiscard]] bool grad_enabled();

// NoGrad for a model that is called often and not trained in between. On the CPU, linear() and convolutions
// read their weights from packed copies, whose order comes from memory faster.
//
//   model.eval();
//   const InferenceMode scope;
//   y = model(x);
//
// The second use of a weight makes its copy, which takes as much memory as the weight, or as its elements in
// float32 where the processor multiplies only those. The copy lives until the module is freed or switched to
// train(), or the weight is moved or converted; a weight that has been written to is packed again by its
// second use after that. A weight has one copy: products of 1 to 8 rows and of more rows read different ones,
// and that for few rows replaces the other.
//
// With a packed weight linear() of 1 to 8 rows adds in another order than without, so results may differ in
// rounding, but not between numbers of threads, nor of 1 to 8 rows. Its weights of fewer than 2^16 elements
// or 64 outputs are not packed for so few rows. linear() of more rows in bfloat16 on matrix units, and
// convolutions, both of at most 4096 rows or pixels, give the same bits as without. Views are not packed.
//
// Under Autocast the converted weight is packed. Conversions of parameters outlive the Autocast scope on the
// CPU, as long as a packed copy would; elsewhere those that do not require grad are converted once for the
// scope, too.
class [[nodiscard]] InferenceMode : NoGrad {
public:
    [[nodiscard]] InferenceMode();
    ~InferenceMode();

private:
    bool previous_;
};

namespace autograd {

struct GradOptions {
    Tensors grad_outputs = {};  // one per output; may be empty when every output has one element
    bool retain_graph = false;  // create_graph implies it
    bool create_graph = false;  // record the backward, so that the results can be differentiated
    // an input that no output depends on gives an undefined tensor instead of an error
    bool allow_unused = false;
};
// Computes d(outputs)/d(inputs), one tensor per input, without changing any grad(). Inputs may be leaves or
// intermediate results. Throws
//  - Error(state) for an output or input that does not require grad, an input that no output depends on
//    (unless allowed), a graph that an earlier call without retain_graph has released, and a saved tensor
//    that was written to since;
//  - Error(value) for another number of grad_outputs than of outputs;
//  - Error(shape) or Error(device) for a grad_output unlike its output, and Error(shape) for one that is
//    missing where the output has more than one element. Another dtype is converted.
[[nodiscard]] Tensors grad(const Tensors& outputs, const Tensors& inputs, const GradOptions& options = {});
// Adds d(outputs)/d(leaf) to the grad() of every leaf that requires grad. Throws as grad() does. With
// create_graph such a grad() has a history that references its leaf, a cycle that is freed only by dropping
// the gradient (set_grad({}), zero_grad()). The results of autograd::grad() make no such cycle.
void backward(const Tensors& outputs, const GradOptions& options = {});

// Called with the gradient of a tensor when backward has computed it. A defined result replaces the gradient;
// it must have the gradient's shape and dtype, or backward throws Error(shape).
using GradHook = Callback<Tensor(const Tensor&)>;
// Hooks run in the order in which they were added, once per backward. The returned number removes the hook.
// Throws Error(state) for a tensor that does not require grad.
int add_hook(const Tensor& tensor, GradHook hook);
// Removes a hook by its number. Does nothing for an unknown or removed number.
void remove_hook(const Tensor& tensor, int hook);

using Segment = Callback<Tensors(const Tensors&)>;
// Activation checkpointing: runs function(inputs) without saving tensors for backward, which runs the
// function again with the random stream and the autocast state of the first run. First-order gradients reach
// the inputs and every leaf that the function uses. Throws Error(state) if a result is undefined; backward
// throws Error(state) if the second run returns another number of tensors, or other shapes or dtypes, and
// with create_graph.
[[nodiscard]] Tensors checkpoint(Segment function, const Tensors& inputs);

// State that a user-defined function saves in forward for backward.
struct Context {
    Tensors saved;  // inputs or outputs of forward, or anything else backward needs
    double scalars[4] = {};
    std::int64_t integers[4] = {};
    std::vector<bool> needs_grad;  // per input
};
struct FunctionOptions {
    const char* name = "function";
    // true: inside an Autocast scope, casts floating inputs to cast_inputs and runs forward and backward with
    // autocast off. false: forward runs under the scope, and backward under the same autocast state, wherever
    // it is called.
    bool has_cast_inputs = false;
    Dtype cast_inputs = float32;
};
using Forward = Callback<Tensors(Context&, const Tensors&)>;
using Backward =
    Callback<Tensors(Context&, const Tensors&)>;  // gradients of the outputs in, of the inputs out
// Calls forward, and registers backward as its gradient. A backward that is written in mezzo's ops can be
// differentiated again. It must return one gradient per input, of the input's shape or a shape that the input
// broadcasts to; an undefined tensor means that there is no gradient. Otherwise the backward pass throws
// Error(value) or Error(shape). Integral and boolean results of forward have no history; backward gets zeros
// as their gradients. Throws Error(state) if forward returns an undefined tensor.
Tensors apply_function(const FunctionOptions& options, Forward forward, Backward backward,
                       const Tensors& inputs);

// A user-defined function as a type with static forward(Context&, const Tensors&) and backward(Context&,
// const Tensors&): struct Cube : autograd::Function<Cube> { … };  Tensor y = Cube::apply({x})[0];
template <class Derived> struct Function {
    static FunctionOptions options() { return {}; }
    static Tensors apply(const Tensors& inputs) {
        return apply_function(
            Derived::options(), [](Context& c, const Tensors& x) { return Derived::forward(c, x); },
            [](Context& c, const Tensors& g) { return Derived::backward(c, g); }, inputs);
    }
};

}  // namespace autograd
}  // namespace mezzo

#pragma GCC visibility pop
