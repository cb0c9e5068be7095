// The options of the optimizers whose update is one kernel, and the list of these optimizers. Every option
// must be finite, and >= 0 unless stated otherwise.
//
//   const optim::AdamWOptions slow{.lr = 1e-5, .beta2 = 0.98};
//   optim::AdamW adam(net.parameters(), slow);
//   optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <iosfwd>

#pragma GCC visibility push(default)

namespace mezzo::optim {

// Storage of the moments of Adam and AdamW; 8 bit after Dettmers et al., arXiv 2110.02861. Moments in less
// than 32 bits exclude amsgrad. Parameters of less than 4,096 elements or two dimensions (such as biases and
// the weights of norms) and the weights of nn::Embedding keep float32 unless `narrow_all` is set. float64
// parameters keep float64.
enum class StatePrecision : std::uint8_t {
    fp32,            // float32, 8 bytes of an element
    bf16,            // bfloat16, 4: with stochastic rounding, which is unbiased
    eight_bit,       // 3: m in blocks of 256 8-bit codes with a float32 maximum, v in bfloat16
    both_eight_bit,  // 2: m and v in blocks; the update of an element is less exact
};

// SGD with momentum (Sutskever et al. 2013), with PyTorch's conventions:
// g += weight_decay w; v = momentum v + (1 - dampening) g, at first v = g; nesterov: g += momentum v, else
// g = v; w -= lr g.
struct SGDOptions {
    double lr = 1e-3;
    double momentum = 0;
    double dampening = 0;  // may be negative
    double weight_decay = 0;
    bool nesterov = false;  // needs momentum > 0 and dampening 0
    bool maximize = false;  // here and below: follows the gradient upwards
};

// Adam (Kingma and Ba, arXiv 1412.6980): g += weight_decay w; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 -
// beta2) g^2; w -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps) in update t. amsgrad (Reddi et al.,
// arXiv 1904.09237) uses the largest v so far instead of v.
struct AdamOptions {
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;  // in [0, 1)
    double eps = 1e-8;
    double weight_decay = 0;  // added to the gradient
    bool amsgrad = false;
    bool maximize = false;
    StatePrecision states = StatePrecision::fp32;
    bool narrow_all = false;
};

// AdamW (Loshchilov and Hutter, arXiv 1711.05101): Adam with decoupled weight decay, w *= 1 - lr
// weight_decay before the update.
struct AdamWOptions {
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;  // in [0, 1)
    double eps = 1e-8;
    double weight_decay = 1e-2;  // decoupled: w loses lr * weight_decay * w
    bool amsgrad = false;
    bool maximize = false;
    StatePrecision states = StatePrecision::fp32;
    bool narrow_all = false;
};

// RMSprop (Hinton's lecture 6e, 2012; centered: Graves, arXiv 1308.0850), with PyTorch's conventions: g +=
// weight_decay w; s = alpha s + (1 - alpha) g^2; centered: a = alpha a + (1 - alpha) g and s - a^2 instead of
// s; d = g / (sqrt(s) + eps); momentum: b = momentum b + d and b instead of d; w -= lr d.
struct RMSpropOptions {
    double lr = 1e-2;
    double alpha = 0.99;  // in [0, 1)
    double eps = 1e-8;
    double weight_decay = 0;
    double momentum = 0;
    bool centered = false;
    bool maximize = false;
};

// Adagrad (Duchi, Hazan and Singer 2011), with PyTorch's conventions: g += weight_decay w; s += g^2;
// w -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) in update t.
struct AdagradOptions {
    double lr = 1e-2;
    double lr_decay = 0;
    double weight_decay = 0;
    double initial_accumulator_value = 0;  // of s before the first update
    double eps = 1e-10;
    bool maximize = false;
};

// NAdam (Dozat 2016), with PyTorch's conventions: Adam's moments with beta1 replaced in update t by
// mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), and with the next update's momentum applied in this one.
struct NAdamOptions {
    double lr = 2e-3;
    double beta1 = 0.9, beta2 = 0.999;  // in [0, 1)
    double eps = 1e-8;
    double weight_decay = 0;
    double momentum_decay = 4e-3;
    bool decoupled_weight_decay = false;  // as in AdamW
    bool maximize = false;
};

// Lion (Chen et al., arXiv 2302.06675): w -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay w);
// m = beta2 m + (1 - beta2) g.
struct LionOptions {
    double lr = 1e-4;
    double beta1 = 0.9, beta2 = 0.99;  // in [0, 1)
    double weight_decay = 0;
    bool maximize = false;
};

// AdamWOptions(lr=0.001, beta1=0.9, …).
std::ostream& operator<<(std::ostream& out, const SGDOptions& options);
std::ostream& operator<<(std::ostream& out, const AdamOptions& options);
std::ostream& operator<<(std::ostream& out, const AdamWOptions& options);
std::ostream& operator<<(std::ostream& out, const RMSpropOptions& options);
std::ostream& operator<<(std::ostream& out, const AdagradOptions& options);
std::ostream& operator<<(std::ostream& out, const NAdamOptions& options);
std::ostream& operator<<(std::ostream& out, const LionOptions& options);

}  // namespace mezzo::optim

// List of the optimizers, one X(name) each: name is the class, name##Options above its options, and name##Row
// in src/kernels/optimizers.h its type and formula.
#define MEZZO_OPTIMIZERS(X) X(SGD) X(Adam) X(AdamW) X(RMSprop) X(Adagrad) X(NAdam) X(Lion)

#pragma GCC visibility pop
