// Weight norm and spectral norm of a layer's weight.
#include "mezzo/parametrizations.h"

#include <string_view>

#include "core/thread_state.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/product_ops.h"

namespace mezzo::nn {

namespace {

Tensor in_float32(const Tensor& x) { return is_16bit(x.dtype()) ? x.to(float32) : x; }

// The norm over all dimensions but dim, with size 1 for each of them; of the whole tensor, 0-dim, for -1.
Tensor norm_except(const Tensor& x, std::int64_t dim) {
    if (dim < 0) return norm(x);
    Axes axes;
    for (int d = 0; d < x.dim(); ++d)
        if (d != dim) axes.push_back(d);
    return axes.empty() ? abs(x) : norm(x, axes, {.keepdim = true});
}

}  // namespace

std::int64_t detail::own_dim(const Module& layer, const Tensor& weight, std::int64_t dim) {
    check(weight.defined() && dim >= -1 && dim < weight.dim(), ErrorKind::value, "weight_norm: dim ", dim,
          " is neither -1 nor a dimension of a weight ", weight.defined() ? weight.shape() : Shape{});
    if (dim < 0) return dim;
    Shape sizes = weight.shape();
    for (int d = 0; d < sizes.size(); ++d) sizes[d] = d;
    return layer.as_saved("weight", empty(sizes)).size(dim);
}

WeightNormParametrization::WeightNormParametrization(const Tensor& weight, std::int64_t dim) : dim_(dim) {
    const NoGrad plain;
    original0_ = Parameter(norm_except(weight.detach(), dim_));
    original0_.set_requires_grad(weight.requires_grad());
}

Tensor WeightNormParametrization::operator()(const Module&, const Tensor& original, bool) const {
    const Tensor v = in_float32(original);
    return (v * (in_float32(original0_) / norm_except(v, dim_))).to(original.dtype());
}

void WeightNormParametrization::visit(FieldVisitor& visitor, Parameter& original) {
    visitor.parameter("parametrizations.weight.original0", original0_);
    visitor.parameter("parametrizations.weight.original1", original);
}

SpectralNormParametrization::SpectralNormParametrization(const Module& layer, const Tensor& weight,
                                                         const SpectralNormOptions& options)
    : options_(options) {
    check(weight.defined() && options.dim >= -1 && options.dim < weight.dim(), ErrorKind::value,
          "spectral_norm: dim ", options.dim, " is no dimension of a weight ",
          weight.defined() ? weight.shape() : Shape{});
    check(options.n_power_iterations > 0, ErrorKind::value, "spectral_norm: n_power_iterations is ",
          options.n_power_iterations, "; it must be positive");
    check(weight.numel() > 0, ErrorKind::value, "spectral_norm: the weight ", weight.shape(), " is empty");
    if (options_.dim < 0)
        options_.dim = std::string_view(layer.type_name()).starts_with("ConvTranspose") ? 1 : 0;
    if (weight.dim() < 2) return;
    const NoGrad plain;
    const Tensor rows = matrix(layer, weight.detach());
    const auto start = [&](std::int64_t n) {
        const Tensor x = empty({n}, {.dtype = rows.dtype(), .device = rows.device()});
        return Buffer(normalize(x.normal_(0, 1), 2, 0, options_.eps).to(weight.dtype()));
    };
    u_ = start(rows.size(0));
    v_ = start(rows.size(1));
    iterate(rows, 15);
}

// The weight in the order of files, as a matrix in float32 at least: the buffers of PyTorch belong to it.
Tensor SpectralNormParametrization::matrix(const Module& layer, const Tensor& weight) const {
    Axes order{options_.dim};
    for (int d = 0; d < weight.dim(); ++d)
        if (d != options_.dim) order.push_back(d);
    return in_float32(layer.as_saved("weight", weight).permute(order).flatten(1));
}

void SpectralNormParametrization::iterate(const Tensor& rows, std::int64_t times) const {
    const NoGrad plain;
    Tensor u = in_float32(u_), v = in_float32(v_);
    for (std::int64_t i = 0; i < times; ++i) {
        u = normalize(matmul(rows, v), 2, 0, options_.eps);
        v = normalize(matmul(u, rows), 2, 0, options_.eps);
    }
    u_.copy_(u);
    v_.copy_(v);
}

Tensor SpectralNormParametrization::operator()(const Module& layer, const Tensor& original,
                                               bool training) const {
    const amp::Autocast off({.enabled = false});
    if (original.dim() < 2) return normalize(in_float32(original), 2, 0, options_.eps).to(original.dtype());
    const Tensor rows = matrix(layer, original);
    if (training && !thread_state.recomputing) iterate(rows.detach(), options_.n_power_iterations);
    // Copies: a later call writes to the buffers, and this one's backward reads them.
    const Tensor u = in_float32(u_).detach().clone(), v = in_float32(v_).detach().clone();
    return (in_float32(original) / dot(u, matmul(rows, v))).to(original.dtype());
}

void SpectralNormParametrization::visit(FieldVisitor& visitor, Parameter& original) {
    visitor.parameter("parametrizations.weight.original", original);
    visitor.buffer("parametrizations.weight.0._u", u_);
    visitor.buffer("parametrizations.weight.0._v", v_);
}

}  // namespace mezzo::nn
