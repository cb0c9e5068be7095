// Layers whose weight is computed from other parameters before each call: weight_norm() and spectral_norm(),
// with the names and values of torch.nn.utils.parametrizations.
//
//   nn::Sequential net(nn::weight_norm(nn::Conv1d(80, 64, 7)), nn::ReLU(), nn::Conv1d(64, 1, 7));
//   nn::SpectralNorm<nn::Linear> critic = nn::spectral_norm(nn::Linear(64, 1));
//   const nn::Linear plain = critic.remove_parametrizations();
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mezzo/module.h"
#include "mezzo/ops.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

namespace detail {

// Passes all fields but "weight" on.
class WithoutWeight : public FieldVisitor {
public:
    explicit WithoutWeight(FieldVisitor& rest) : rest_(rest) {}
    void parameter(const std::string& name, Parameter& p) override {
        if (name != "weight") rest_.parameter(name, p);
    }
    void buffer(const std::string& name, Buffer& b) override { rest_.buffer(name, b); }
    void module(const std::string& name, Module& child) override { rest_.module(name, child); }

private:
    FieldVisitor& rest_;
};

// A dimension of the weight as state_dict() shows it, counted in the weight's own order, in which
// convolutions have the channels last. -1 stays -1.
[[nodiscard]] std::int64_t own_dim(const Module& layer, const Tensor& weight, std::int64_t dim);

}  // namespace detail

// weight = original0 original1 / |original1| (Salimans and Kingma, arXiv 1602.07868), with the norm over all
// dimensions but one.
class WeightNormParametrization {
public:
    static constexpr const char* name = "WeightNorm";
    // dim: counted in the weight's own order, -1 for the norm of the whole weight.
    WeightNormParametrization(const Tensor& weight, std::int64_t dim);
    [[nodiscard]] Tensor operator()(const Module& layer, const Tensor& original, bool training) const;
    void visit(FieldVisitor& visitor, Parameter& original);

private:
    Parameter original0_;
    std::int64_t dim_;
};

struct SpectralNormOptions {
    std::int64_t n_power_iterations = 1;  // per call in training mode, >= 1
    double eps = 1e-12;
    std::int64_t dim = -1;  // rows of the matrix; -1: 1 for transposed convolutions, else 0
};
// weight = original / sigma, the largest singular value of the weight as a matrix [size of dim, rest] (Miyato
// et al., arXiv 1802.05957). Calls in training mode improve its estimate by power iteration, in float32 at
// least, with the singular vectors in two buffers; two threads must not train the same layer at once.
class SpectralNormParametrization {
public:
    static constexpr const char* name = "SpectralNorm";
    SpectralNormParametrization(const Module& layer, const Tensor& weight,
                                const SpectralNormOptions& options);
    [[nodiscard]] Tensor operator()(const Module& layer, const Tensor& original, bool training) const;
    void visit(FieldVisitor& visitor, Parameter& original);

private:
    Tensor matrix(const Module& layer, const Tensor& weight) const;
    void iterate(const Tensor& matrix, std::int64_t times) const;
    Buffer u_, v_;
    SpectralNormOptions options_;
};

// A layer of type M whose weight a parametrization P computes. Instead of "weight" it lists the parameters of
// P, named "parametrizations.weight.…" as in PyTorch. As M (at<M>() of a Sequential, a reference
// to M) it is the layer with the original weight. A class of your own may be P: it has what
// WeightNormParametrization has.
template <class M, class P> class Parametrized : public M {
public:
    Parametrized(M layer, P parametrization)
        : M(std::move(layer)), parametrization_(std::move(parametrization)) {}

    // The layer with the weight as computed, of one or several tensors, or of a tensor and other arguments,
    // such as an output_size.
    template <class... T>
    requires(std::is_invocable_r_v<Tensor, const M&, const Tensor&, const T&...>) [[nodiscard]] Tensor
    operator()(const Tensor& input, const T&... more) const {
        if constexpr ((std::is_base_of_v<Tensor, T> && ...))
            return this->with_hooks([this](const auto&... x) { return computed()(x...); }, input, more...);
        else
            return this->with_hooks([&](const Tensor& x) { return computed()(x, more...); }, input);
    }
    // The weight that calls use; with history if gradients are on. In training mode it counts as a call.
    [[nodiscard]] Tensor weight() const { return parametrization_(*this, M::weight, this->training()); }
    // The layer with the weight as it is in eval mode.
    [[nodiscard]] M remove_parametrizations() const {
        M layer(*this);
        layer.weight = Parameter(parametrization_(*this, M::weight, false).detach());
        layer.weight.set_requires_grad(M::weight.requires_grad());
        return layer;
    }

    const char* type_name() const override { return P::name; }
    std::string describe() const override { return std::string(M::type_name()) + ", " + M::describe(); }
    void visit_fields(FieldVisitor& visitor) override {
        detail::WithoutWeight rest(visitor);
        M::visit_fields(rest);
        parametrization_.visit(visitor, M::weight);
    }
    Tensor as_saved(std::string_view field, const Tensor& tensor) const override {
        constexpr std::string_view prefix = "parametrizations.weight.original";
        return M::as_saved(field.starts_with(prefix) ? "weight" : field, tensor);
    }

private:
    M computed() const {
        Parametrized copy(*this);
        copy.drop_hooks();  // they run around this call
        static_cast<Tensor&>(copy.M::weight) = weight();
        return copy;
    }
    P parametrization_;
};

template <class M> using WeightNorm = Parametrized<M, WeightNormParametrization>;
template <class M> using SpectralNorm = Parametrized<M, SpectralNormParametrization>;

// The layer with its weight split into direction and length: original1 starts as the weight, original0 as its
// norms over all dimensions but dim, counted as in state_dict(); -1: the norm of the whole weight. In older
// files of PyTorch the two are weight_v and weight_g.
template <class M> [[nodiscard]] WeightNorm<M> weight_norm(M layer, std::int64_t dim = 0) {
    WeightNormParametrization norm(layer.weight, detail::own_dim(layer, layer.weight, dim));
    return WeightNorm<M>(std::move(layer), std::move(norm));
}

// The layer with its weight divided by its spectral norm. Throws Error(value) for options out of range.
template <class M>
[[nodiscard]] SpectralNorm<M> spectral_norm(M layer, const SpectralNormOptions& options = {}) {
    SpectralNormParametrization norm(layer, layer.weight, options);
    return SpectralNorm<M>(std::move(layer), std::move(norm));
}

}  // namespace mezzo::nn

#pragma GCC visibility pop
