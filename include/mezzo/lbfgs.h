// LBFGS: a quasi-Newton method that evaluates the loss several times in a step.
//
//   optim::LBFGS lbfgs(net.parameters(), {.line_search_fn = optim::LineSearch::strong_wolfe});
//   loss = lbfgs.step([&] {
//       lbfgs.zero_grad();
//       return train(x, y);  // the loss, after its backward()
//   });
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/custom_optimizer.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {

enum class LineSearch : std::uint8_t { none, strong_wolfe };

struct [[gnu::visibility("hidden")]] LBFGSStep;  // src/optim/lbfgs.cpp

struct LBFGSOptions {
    double lr = 1;
    std::int64_t max_iter = 20;                    // iterations of a step
    std::int64_t max_eval = 0;                     // evaluations of a step; 0: max_iter * 5 / 4
    double tolerance_grad = 1e-7;                  // ends the step: no gradient is larger than this
    double tolerance_change = 1e-9;                // ends the step: loss or parameters change by less
    std::int64_t history_size = 100;               // > 0: each is two copies of the parameters
    LineSearch line_search_fn = LineSearch::none;  // none: each iteration is lr along the direction
    bool maximize = false;
};

// L-BFGS (Nocedal 1980; Nocedal and Wright, Numerical Optimization, algorithm 7.5), with PyTorch's
// conventions: the first iteration goes along the gradient, min(1, 1 / |g|_1) lr far. The line search looks
// for a point that satisfies the strong Wolfe conditions, with cubic interpolation. Works with schedules and
// with 16-bit parameters that have master weights. A step waits for the device; step() counts as one applied
// step.
//
// A GradScaler cannot be used: gradients and losses of several evaluations must have one scale.
// GradScaler::step() and Optimizer::step() without a closure throw Error(state), and step() does so for a
// gradient that is still scaled. Use bfloat16, whose range is that of float32, in the closure's Autocast.
class LBFGS : public CustomOptimizer {
public:
    // One group of parameters. Error(value) for options out of their range, and for the parameters that other
    // optimizers refuse.
    explicit LBFGS(const Tensors& params, const LBFGSOptions& options = {});
    explicit LBFGS(const StateDict& named_params, const LBFGSOptions& options = {});

    // Runs up to max_iter iterations, and returns the first loss. closure() clears the gradients, computes
    // the loss, runs backward() and returns the loss, one number; it is called with gradients enabled, and
    // must compute the same function each time. If the first loss or a gradient there is not finite, nothing
    // changes, and the step counts as skipped. If closure() throws, the parameters get back their values.
    // Throws Error(value) for a loss that is not one number, Error(device) for parameters on several devices,
    // and Error(state) inside a captured step.
    Tensor step(const autograd::Callback<Tensor()>& closure);

protected:
    // With the history as entries "lbfgs.…".
    [[nodiscard]] StateDict saved_state() const override;
    void restore_state(const StateDict& state) override;
    void update(ParameterUpdate& p) override;  // Error(state)

private:
    friend struct LBFGSStep;
    // All vectors have the elements of all parameters, one after the other.
    struct History {
        std::int64_t iterations = 0, evaluations = 0;
        double length = 0;                // of the last iteration, along its direction
        Tensor direction, gradient;       // of the last iteration, the gradient before it
        Tensors gradient_changes, moves;  // y and s of the last iterations, oldest first
        Tensors inverse_products;         // 1 / (y s), 0-dim
        Tensor scale;                     // of the first approximation of the inverse Hessian, 0-dim
    };
    History history_;
};

}  // namespace mezzo::optim

#pragma GCC visibility pop
