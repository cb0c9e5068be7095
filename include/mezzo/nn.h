// Layers, activations, losses, Sequential and gradient clipping, as modules in the style of torch.nn.
//
//   nn::Sequential net(nn::Linear(784, 128), nn::ReLU(), nn::Dropout(0.1), nn::Linear(128, 10));
//   loss = cross_entropy(net(x), labels);
//   loss.backward();
//   nn::clip_grad_norm_(net.parameters(), 1.0);
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/any_module.h"
#include "mezzo/conv_layers.h"
#include "mezzo/module.h"
#include "mezzo/norm_layers.h"
#include "mezzo/ops.h"
#include "mezzo/pool_layers.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

struct LinearOptions {
    bool bias = true;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// Linear layer, y = x W^T + b: x [..., in_features] -> [..., out_features]. Weight and bias start as
// U(-1/sqrt(in), 1/sqrt(in)), PyTorch's default.
class Linear : public Module {
public:
    // Error(value) for negative sizes. The options' device and dtype are those of the parameters, here and
    // below.
    Linear(std::int64_t in_features, std::int64_t out_features, const LinearOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return linear(x, weight, bias); }
    std::string describe() const override;

    Parameter weight;  // [out_features, in_features]
    Parameter bias;    // [out_features], undefined without bias
    MEZZO_MODULE(Linear, weight, bias)
};

struct EmbeddingOptions {
    std::int64_t padding_idx = -1;  // >= 0: this row starts as 0 and look-ups give it no gradient
    Device device = cpu_device;
    Dtype dtype = float32;
};

// Look-up of rows in a table: int64 index [...] in 0 … num_embeddings-1 -> [..., embedding_dim]. The weight
// starts as N(0, 1), PyTorch's default. An index outside throws Error(value) on the CPU and gives NaN rows on
// CUDA.
class Embedding : public Module {
public:
    // Error(value) for negative sizes and a padding_idx outside [-1, num_embeddings).
    Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, const EmbeddingOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& index) const {
        return embedding(weight, index, padding_idx);
    }
    std::string describe() const override;

    Parameter weight;  // [num_embeddings, embedding_dim]
    std::int64_t padding_idx;
    MEZZO_MODULE(Embedding, weight)
};

struct LayerNormOptions {
    double eps = 1e-5;
    bool bias = true;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// layer_norm over the last dimension, which has n elements. The weight starts as 1, the bias as 0.
class LayerNorm : public Module {
public:
    // Error(value) unless n is positive and eps not negative.
    explicit LayerNorm(std::int64_t n, const LayerNormOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return layer_norm(x, weight, bias, eps); }
    std::string describe() const override;
    bool is_normalization() const override { return true; }

    Parameter weight;  // [n]
    Parameter bias;    // [n], undefined without bias
    double eps;
    MEZZO_MODULE(LayerNorm, weight, bias)
};

struct RMSNormOptions {
    double eps = 1e-5;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// rms_norm over the last dimension, which has n elements. The weight starts as 1.
class RMSNorm : public Module {
public:
    // Error(value) unless n is positive and eps not negative.
    explicit RMSNorm(std::int64_t n, const RMSNormOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return rms_norm(x, weight, eps); }
    std::string describe() const override;
    bool is_normalization() const override { return true; }

    Parameter weight;  // [n]
    double eps;
    MEZZO_MODULE(RMSNorm, weight)
};

// Activations: element-wise, any shape.
struct ReLU : Module {
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return relu(x); }
    MEZZO_MODULE(ReLU)
};
struct Tanh : Module {
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return tanh(x); }
    MEZZO_MODULE(Tanh)
};
struct Sigmoid : Module {
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return sigmoid(x); }
    MEZZO_MODULE(Sigmoid)
};
struct SiLU : Module {
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return silu(x); }
    MEZZO_MODULE(SiLU)
};
struct Softsign : Module {
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return softsign(x); }
    MEZZO_MODULE(Softsign)
};
struct GELUOptions {
    bool approximate_tanh = false;
};
class GELU : public Module {
public:
    explicit GELU(const GELUOptions& options = {}) : approximate_tanh(options.approximate_tanh) {}
    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        return approximate_tanh ? gelu_tanh(x) : gelu(x);
    }
    std::string describe() const override { return approximate_tanh ? "approximate=tanh" : ""; }

    bool approximate_tanh;
    MEZZO_MODULE(GELU)
};

// Zeroes each element with probability p while training; the identity after eval().
class Dropout : public Module {
public:
    explicit Dropout(double probability = 0.5);  // Error(value) unless in [0, 1]
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return dropout(x, p, training()); }
    std::string describe() const override;

    double p;
    MEZZO_MODULE(Dropout)
};

// Dropouts of whole channels, and those for SELU; see the functions in image_ops.h.
#define MEZZO_DROPOUT(Class, function)                                                                \
    class Class : public Dropout {                                                                    \
    public:                                                                                           \
        using Dropout::Dropout;                                                                       \
        [[nodiscard]] Tensor operator()(const Tensor& x) const { return function(x, p, training()); } \
        MEZZO_MODULE(Class)                                                                           \
    };
MEZZO_DROPOUT(Dropout1d, dropout1d)
MEZZO_DROPOUT(Dropout2d, dropout2d)
MEZZO_DROPOUT(Dropout3d, dropout3d)
MEZZO_DROPOUT(AlphaDropout, alpha_dropout)
MEZZO_DROPOUT(FeatureAlphaDropout, feature_alpha_dropout)
#undef MEZZO_DROPOUT

// Joins the dimensions from start_dim to end_dim, both included, into one; all but the first by default.
class Flatten : public Module {
public:
    explicit Flatten(std::int64_t start = 1, std::int64_t end = -1) : start_dim(start), end_dim(end) {}
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return x.flatten(start_dim, end_dim); }

    std::int64_t start_dim, end_dim;
    MEZZO_MODULE(Flatten)
};

class Softmax : public Module {
public:
    explicit Softmax(std::int64_t dimension = -1) : dim(dimension) {}
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return softmax(x, dim); }

    std::int64_t dim;
    MEZZO_MODULE(Softmax)
};
class LogSoftmax : public Module {
public:
    explicit LogSoftmax(std::int64_t dimension = -1) : dim(dimension) {}
    [[nodiscard]] Tensor operator()(const Tensor& x) const { return log_softmax(x, dim); }

    std::int64_t dim;
    MEZZO_MODULE(LogSoftmax)
};

// Losses as modules: each calls the function of the same family in ops.h with its options.
#define MEZZO_LOSS(Class, function, Options)                                               \
    class Class : public Module {                                                          \
    public:                                                                                \
        explicit Class(const Options& loss_options = {}) : options(loss_options) {}        \
        [[nodiscard]] Tensor operator()(const Tensor& input, const Tensor& target) const { \
            return function(input, target, options);                                       \
        }                                                                                  \
                                                                                           \
        Options options;                                                                   \
        MEZZO_MODULE(Class)                                                                \
    };
using mezzo::LossOptions;
// smooth_l1_loss() as a module: quadratic near 0, linear beyond options.beta.
MEZZO_LOSS(SmoothL1Loss, smooth_l1_loss, SmoothL1Options)
// cross_entropy() as a module: of logits [..., classes] and classes or probabilities.
MEZZO_LOSS(CrossEntropyLoss, cross_entropy, CrossEntropyOptions)
// nll_loss() as a module: of logarithms of probabilities [..., classes] and classes.
MEZZO_LOSS(NLLLoss, nll_loss, NllOptions)
// mse_loss() as a module: (input - target)^2.
MEZZO_LOSS(MSELoss, mse_loss, LossOptions)
// l1_loss() as a module: |input - target|.
MEZZO_LOSS(L1Loss, l1_loss, LossOptions)
// binary_cross_entropy() as a module: of probabilities.
MEZZO_LOSS(BCELoss, binary_cross_entropy, BceOptions)
// binary_cross_entropy_with_logits() as a module: of the values before sigmoid.
MEZZO_LOSS(BCEWithLogitsLoss, binary_cross_entropy_with_logits, BceWithLogitsOptions)
#undef MEZZO_LOSS

// Modules applied one after the other. A Linear followed by ReLU or GELU, and a BatchNorm2d followed by ReLU,
// run as one op with the activation at its end. A handle: copies share the modules, their parameters and
// their training flags.
class Sequential : public Module {
public:
    Sequential() = default;
    template <class... Modules>
    requires(sizeof...(Modules) > 0 && (std::is_base_of_v<Module, std::remove_cvref_t<Modules>> && ...) &&
             !(sizeof...(Modules) == 1 && (std::is_same_v<std::remove_cvref_t<Modules>, Sequential> &&
                                           ...))) explicit Sequential(Modules&&... modules) {
        (push_back(std::forward<Modules>(modules)), ...);
    }

    // Appends a module with operator()(const Tensor&).
    template <class M> void push_back(M&& module) {
        layers_.push_back(AnyModule(std::remove_cvref_t<M>(std::forward<M>(module))));
    }
    [[nodiscard]] std::size_t size() const { return layers_.size(); }
    // Module i; at<Linear>(0) returns it as its own type. Throws Error(value) if there is none, or it has
    // another type.
    [[nodiscard]] Module& operator[](std::size_t i) const;
    template <class M> [[nodiscard]] M& at(std::size_t i) const {
        M* const module = dynamic_cast<M*>(&(*this)[i]);
        check(module != nullptr, ErrorKind::value, "Sequential: module ", i, " is a ",
              (*this)[i].type_name());
        return *module;
    }

    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    const char* type_name() const override { return "Sequential"; }
    void visit_fields(FieldVisitor& visitor) override;
    void own_copies(detail::OwnCopies& made) override;

private:
    std::vector<AnyModule> layers_;
};

// Scales all gradients in place by min(1, max_norm / (norm + 1e-6)), where norm is the Euclidean norm of all
// of them together. Returns that norm as a 0-dim tensor on their device, without waiting for it: float64 if a
// gradient is, else float32. inf and NaN do not throw. Parameters without a gradient are left out; without
// any, the norm is 0. Throws Error(value) for a negative max_norm, and Error(device) for gradients on several
// devices.
Tensor clip_grad_norm_(const Tensors& parameters, double max_norm);
// Limits every element of every gradient to [-limit, limit], in place. Throws as clip_grad_norm_().
void clip_grad_value_(const Tensors& parameters, double limit);

}  // namespace mezzo::nn

#pragma GCC visibility pop
