// Layers, Sequential and gradient clipping in the style of torch.nn. Activations and losses as modules are in
// activation_layers.h and loss_layers.h, included here.
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

#include "mezzo/activation_layers.h"
#include "mezzo/any_module.h"
#include "mezzo/conv_layers.h"
#include "mezzo/loss_layers.h"
#include "mezzo/module.h"
#include "mezzo/norm_layers.h"
#include "mezzo/ops.h"
#include "mezzo/pool_layers.h"
#include "mezzo/product_ops.h"
#include "mezzo/reduce_ops.h"

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
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return linear(x, weight, bias); }, input);
    }
    std::string describe() const override;
    bool is_linear_weight(std::string_view path) const override { return path == "weight"; }

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
    // Holds the elements of weight [num_embeddings, embedding_dim], which requires no grad with freeze.
    [[nodiscard]] static Embedding from_pretrained(const Tensor& weight, bool freeze = true,
                                                   std::int64_t padding_idx = -1);
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& index) { return embedding(weight, index, padding_idx); },
                          input);
    }
    std::string describe() const override;

    Parameter weight;  // [num_embeddings, embedding_dim]
    std::int64_t padding_idx;
    MEZZO_MODULE(Embedding, weight)
};

struct EmbeddingBagLayerOptions {
    BagMode mode = BagMode::mean;
    bool include_last_offset = false;
    std::int64_t padding_idx = -1;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// embedding_bag(): the sum, mean or maximum of the rows of each bag of indices. The weight starts as N(0, 1).
class EmbeddingBag : public Module {
public:
    // Errors are those of Embedding.
    EmbeddingBag(std::int64_t num_embeddings, std::int64_t embedding_dim,
                 const EmbeddingBagLayerOptions& options = {});
    // index [bags, length], or [n] with offsets [bags], where the bags begin; per_sample_weights like index.
    [[nodiscard]] Tensor operator()(const Tensor& input, const Tensor& offsets = {},
                                    const Tensor& per_sample_weights = {}) const;
    std::string describe() const override;

    Parameter weight;  // [num_embeddings, embedding_dim]
    BagMode mode;
    bool include_last_offset;
    std::int64_t padding_idx;
    MEZZO_MODULE(EmbeddingBag, weight)
};

// y = bilinear(a, b, weight, bias): a [..., in1_features], b [..., in2_features] -> [..., out_features].
// Weight and bias start as U(-1/sqrt(in1), 1/sqrt(in1)).
class Bilinear : public Module {
public:
    // Error(value) for negative sizes.
    Bilinear(std::int64_t in1_features, std::int64_t in2_features, std::int64_t out_features,
             const LinearOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& first, const Tensor& second) const {
        return with_hooks([this](const Tensor& a, const Tensor& b) { return bilinear(a, b, weight, bias); },
                          first, second);
    }
    std::string describe() const override;

    Parameter weight;  // [out_features, in1_features, in2_features]
    Parameter bias;    // [out_features], undefined without bias
    MEZZO_MODULE(Bilinear, weight, bias)
};

struct SwiGLUOptions {
    bool bias = false;
    Device device = cpu_device;
    Dtype dtype = float32;
};

// The feed-forward part of Llama: down_proj(silu(gate_proj(x)) * up_proj(x)) (Shazeer, arXiv 2002.05202),
// with the names of Hugging Face's LlamaMLP: x [..., features] -> the same shape.
class SwiGLU : public Module {
public:
    SwiGLU(std::int64_t features, std::int64_t hidden_features, const SwiGLUOptions& options = {});
    [[nodiscard]] Tensor operator()(const Tensor& x) const;

    Linear gate_proj, up_proj, down_proj;
    MEZZO_MODULE(SwiGLU, gate_proj, up_proj, down_proj)
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
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return layer_norm(x, weight, bias, eps); }, input);
    }
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
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return rms_norm(x, weight, eps); }, input);
    }
    std::string describe() const override;
    bool is_normalization() const override { return true; }

    Parameter weight;  // [n]
    double eps;
    MEZZO_MODULE(RMSNorm, weight)
};

// Zeroes each element with probability p while training; the identity after eval().
class Dropout : public Module {
public:
    explicit Dropout(double probability = 0.5);  // Error(value) unless in [0, 1]
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return dropout(x, p, training()); }, input);
    }
    std::string describe() const override;

    double p;
    MEZZO_MODULE(Dropout)
};

// Dropouts of whole channels, and those for SELU; see the functions in image_ops.h.
#define MEZZO_DROPOUT(Class, function)                                                                \
    class Class : public Dropout {                                                                    \
    public:                                                                                           \
        using Dropout::Dropout;                                                                       \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                                  \
            return with_hooks([this](const Tensor& x) { return function(x, p, training()); }, input); \
        }                                                                                             \
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
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return x.flatten(start_dim, end_dim); }, input);
    }
    std::string describe() const override;

    std::int64_t start_dim, end_dim;
    MEZZO_MODULE(Flatten)
};

// Splits dimension dim into several of the given sizes, of which one may be -1: the size that remains.
class Unflatten : public Module {
public:
    Unflatten(std::int64_t dimension, const Shape& sizes) : dim(dimension), unflattened_size(sizes) {}
    // Error(shape) if the product of the sizes is not the size of the dimension.
    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    std::string describe() const override;

    std::int64_t dim;
    Shape unflattened_size;
    MEZZO_MODULE(Unflatten)
};

// The input itself. Takes any arguments and ignores them, so that it can replace another layer.
struct Identity : Module {
    template <class... Arguments> explicit Identity(const Arguments&...) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([](const Tensor& x) { return x; }, input);
    }
    MEZZO_MODULE(Identity)
};

// cosine_similarity() of two tensors along a dimension.
class CosineSimilarity : public Module {
public:
    explicit CosineSimilarity(std::int64_t dimension = 1, double epsilon = 1e-8)
        : dim(dimension), eps(epsilon) {}
    [[nodiscard]] Tensor operator()(const Tensor& first, const Tensor& second) const {
        return with_hooks(
            [this](const Tensor& a, const Tensor& b) { return cosine_similarity(a, b, dim, eps); }, first,
            second);
    }

    std::int64_t dim;
    double eps;
    MEZZO_MODULE(CosineSimilarity)
};

// pairwise_distance() of the rows of two tensors.
class PairwiseDistance : public Module {
public:
    explicit PairwiseDistance(const PairwiseDistanceOptions& distance_options = {})
        : options(distance_options) {}
    [[nodiscard]] Tensor operator()(const Tensor& first, const Tensor& second) const {
        return with_hooks(
            [this](const Tensor& a, const Tensor& b) { return pairwise_distance(a, b, options); }, first,
            second);
    }

    PairwiseDistanceOptions options;
    MEZZO_MODULE(PairwiseDistance)
};

// Modules applied one after the other. A Linear followed by ReLU or GELU, and a BatchNorm2d followed by ReLU,
// run as one op with the activation at its end, unless one of them has hooks. A handle: copies share the
// modules, their parameters and their training flags.
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
    Tensor run(Tensor y) const;
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
