// Optimizers written in ops (mezzo/custom_optimizer.h): LAMB, RAdam, Adamax, Adadelta, ASGD, Rprop, Adafactor
// and Muon. Formulas are PyTorch's. A step is several ops for each parameter; those of mezzo/optim.h are one
// kernel each.
//
//   optim::Muon muon({weight}, {.lr = 0.02});  // matrices of hidden layers
//   optim::AdamW adamw({bias}, {.lr = 3e-4});  // the other parameters
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "mezzo/custom_optimizer.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {

// Options must be finite, and >= 0 unless stated otherwise.

// LAMB (You et al., arXiv 1904.00962, version 5): Adam's moments with bias correction, u = m / (sqrt(v) +
// eps) + weight_decay w; w -= lr |w| / |u| u, with the norms of the whole parameter; the ratio |w| / |u| is 1
// if a norm is 0.
struct LAMBOptions {
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;  // in [0, 1)
    double eps = 1e-6;
    double weight_decay = 1e-2;
    bool maximize = false;
};

// RAdam (Liu et al., arXiv 1908.03265): in update t w -= lr m / (1 - beta1^t) as long as p <= 5, then Adam's
// step times sqrt((p - 4) (p - 2) q / ((q - 4) (q - 2) p)), where q = 2 / (1 - beta2) - 1 and
// p = q - 2 t beta2^t / (1 - beta2^t).
struct RAdamOptions {
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;  // in [0, 1)
    double eps = 1e-8;
    double weight_decay = 0;
    bool decoupled_weight_decay = false;  // as in AdamW
    bool maximize = false;
};

// Adamax (Kingma and Ba, arXiv 1412.6980, section 7.1): g += weight_decay w; m = beta1 m + (1 - beta1) g;
// u = max(beta2 u, |g| + eps); w -= lr / (1 - beta1^t) m / u in update t.
struct AdamaxOptions {
    double lr = 2e-3;
    double beta1 = 0.9, beta2 = 0.999;  // in [0, 1)
    double eps = 1e-8;
    double weight_decay = 0;
    bool maximize = false;
};

// Adadelta (Zeiler, arXiv 1212.5701): g += weight_decay w; v = rho v + (1 - rho) g^2; d = sqrt(a + eps) /
// sqrt(v + eps) g; a = rho a + (1 - rho) d^2; w -= lr d.
struct AdadeltaOptions {
    double lr = 1;
    double rho = 0.9;  // in [0, 1)
    double eps = 1e-6;
    double weight_decay = 0;
    bool maximize = false;
};

// Averaged SGD (Polyak and Juditsky 1992), with PyTorch's conventions: g += weight_decay w; w = (1 - lambd
// eta) w - eta g, where eta = lr / (1 + lambd lr t)^alpha with the lr and the number t of the update before,
// and lr in the first update. The state "ax" is the average of w from update t0 + 2 on, and w before.
struct ASGDOptions {
    double lr = 1e-2;
    double lambd = 1e-4;
    double alpha = 0.75;
    double t0 = 1e6;
    double weight_decay = 0;
    bool maximize = false;
};

// Resilient backpropagation (Riedmiller and Braun 1993), for gradients of all samples: each element has a
// step size, lr at first, which is multiplied by eta_plus if the gradient's sign stays, and by eta_minus if
// it changes; then the element does not move. w -= sign(g) step size.
struct RpropOptions {
    double lr = 1e-2;                                 // the first step size of each element
    double eta_minus = 0.5, eta_plus = 1.2;           // in [0, 1), and >= 1
    double step_size_min = 1e-6, step_size_max = 50;  // bounds of the step sizes
    bool maximize = false;
};

// Adafactor (Shazeer and Stern, arXiv 1804.04235), with PyTorch's conventions: v += t^beta2_decay (g^2 - v);
// u = g / max(sqrt(v), eps1); w -= a u / max(1, rms(u) / d) with a = max(eps2, rms(w)) min(lr, 1 / sqrt(t))
// in update t. rms is the root mean square. For a parameter with two or more dimensions the state has only
// the means of v over the last dimension and over the one before, and their product stands for v.
struct AdafactorOptions {
    double lr = 1e-2;
    double beta2_decay = -0.8;  // <= 0
    double eps1 = 0;            // 0: the epsilon of the dtype that the update computes in
    double eps2 = 1e-3;
    double d = 1;  // >= 1: bound of the root mean square of an update
    double weight_decay = 0;
    bool maximize = false;
};

// Factors of Muon's learning rate for a matrix of `rows` rows and `columns` columns.
enum class MuonAdjustLr : std::uint8_t {
    original,            // sqrt(max(1, rows / columns)) (Jordan et al. 2024)
    match_rms_adamw,     // 0.2 sqrt(max(rows, columns)), for AdamW's lr and weight_decay (arXiv 2502.16982)
    spectral_unclamped,  // sqrt(rows / columns)
};
// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), with PyTorch's conventions: b = momentum b +
// (1 - momentum) g; nesterov: u = momentum b + (1 - momentum) g, else u = b; w -= lr weight_decay w + lr
// factor orthogonal(u). orthogonal() brings the singular values of its argument near 1 by ns_steps
// Newton-Schulz iterations X = a X + (b X X' + c (X X')^2) X from X = u / max(|u|, eps), whose products read
// and write bfloat16 and add up in float32.
struct MuonOptions {
    double lr = 1e-3;
    double weight_decay = 0.1;  // decoupled
    double momentum = 0.95;
    bool nesterov = true;
    std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};  // a, b, c; may be negative
    double eps = 1e-7;
    std::int64_t ns_steps = 5;  // below 100
    MuonAdjustLr adjust_lr_fn = MuonAdjustLr::original;
};

// The constructors, set_option() and load_state_dict() throw the errors of mezzo/optim.h.
#define MEZZO_OPTIMIZER_IN_OPS(name) \
    MEZZO_OPTIMIZER_CLASS(name, CustomOptimizer, protected : void update(ParameterUpdate& p) override;)
// LAMB, Adam with a step in proportion to the parameter's norm; see LAMBOptions.
MEZZO_OPTIMIZER_IN_OPS(LAMB)
// RAdam, Adam that begins with plain momentum; see RAdamOptions.
MEZZO_OPTIMIZER_IN_OPS(RAdam)
// Adamax, Adam with the maximum norm; see AdamaxOptions.
MEZZO_OPTIMIZER_IN_OPS(Adamax)
// Adadelta; see AdadeltaOptions.
MEZZO_OPTIMIZER_IN_OPS(Adadelta)
// Averaged SGD; see ASGDOptions.
MEZZO_OPTIMIZER_IN_OPS(ASGD)
// Rprop; see RpropOptions.
MEZZO_OPTIMIZER_IN_OPS(Rprop)
// Adafactor, with little state; see AdafactorOptions.
MEZZO_OPTIMIZER_IN_OPS(Adafactor)
// Muon, for matrices; see MuonOptions. Error(shape) for a parameter that is not a matrix: give biases, norms,
// embeddings and convolutions to AdamW.
MEZZO_OPTIMIZER_IN_OPS(Muon)
#undef MEZZO_OPTIMIZER_IN_OPS

}  // namespace mezzo::optim

#pragma GCC visibility pop
