// linear in float8, of an Autocast scope with fp8. With q(a) the codes of a along the dimension of the sum,
// and s(a) their scales:
//
//     z = q(x) q(W)^T / (s(x) s(W)) + b,  y = activation(z)        forward
//
//     dz = dy * activation'(z)
//     dx = q(dz) q(W) / (s(dz) s(W))
//     dW = q(dz)^T q(x) / (s(dz) s(x)),  db = sum of the rows of dz
#include <array>

#include "autograd/autocast_state.h"
#include "autograd/extra.h"
#include "autograd/report.h"
#include "ops/fp8_product.h"
#include "ops/linear.h"
#include "ops/products.h"

namespace mezzo {

namespace {

const OpTraits report_traits{.name = "linear", .cast = CastPolicy::low, .fp8 = true};

class Fp8Layer {
public:
    Fp8Layer(const amp::Fp8& fp8, const Tensor& x, const Tensor& weight, const Tensor& bias,
             Activation activation)
        : fp8_(fp8),
          activation_(activation),
          low_(autocast_dtype(CastPolicy::low, x)),
          x_shape_(x.shape()),
          dtypes_{x.dtype(), weight.dtype(), bias.defined() ? bias.dtype() : float32} {
        edges_[0] = edge_of(x);
        edges_[1] = edge_of(weight);
        if (bias.defined()) edges_[2] = edge_of(bias);
    }

    Tensors forward(autograd::Context& context, const Tensors& in) const {
        const Tensor x = matrix_of(cached_cast(in[0], low_)), weight = cached_cast(in[1], low_);
        const NoAutocast plain;
        context.saved.resize(saved_tensors);
        const bool saves_x = needs(context, 1) || reads_operands();
        const QuantizedBoth both =
            saves_x && saves_codes() ? both_operands(x) : QuantizedBoth{operand(x), {}};
        const Quantized& qx = both.matrix;
        const bool curved = activation_ != Activation::none && activation_ != Activation::relu;
        const Fp8Result z =
            product(qx, operand(weight), in.size() > 2 ? in[2] : Tensor(),
                    {.dtype = low_, .activation = activation_, .saves_pre_activation = curved});
        if (saves_x) context.saved[of_x] = saves_codes() ? both.transposed.codes : x;
        context.saved[of_scale] = qx.scale;
        if (needs(context, 0) || reads_operands()) context.saved[of_weight] = weight;
        Shape shape = x_shape_;
        shape.back() = weight.size(0);
        Tensor result = z.y.reshape(shape);
        if (activation_ == Activation::relu)
            context.saved[of_activation] = result;
        else
            context.saved[of_activation] = z.pre_activation;
        return {result};
    }

    Tensors backward(const autograd::Context& context, const Tensors& gradients) const {
        const NoAutocast plain;
        const Tensor dy = matrix_of(cast(gradients[0], low_));
        if (grad_enabled()) return recorded(context, dy);
        const Tensor dz = before_activation(dy, context);
        Tensors result(context.needs_grad.size());
        const QuantizedBoth qdz = gradient_operands(dz, context);
        if (needs(context, 0)) {
            const Tensor& weight = context.saved[of_weight];
            const Quantized columns =
                by_tensor() ? both_operands(weight, Wanted::transposed).transposed : operand(weight.t());
            result[0] = cast(product(qdz.matrix, columns), dtypes_[0]).reshape(x_shape_);
        }
        if (needs(context, 1)) result[1] = cast(weight_gradient(dz, qdz, context), dtypes_[1]);
        if (needs(context, 2)) result[2] = cast(bias_grad(dz, float32), dtypes_[2]);
        return result;
    }

private:
    // The saved tensors: x in 16 bit or as codes of the transposed matrix, its scale, the weight in 16 bit,
    // and the tensor that the gradient of the activation reads. Tensors that no gradient reads are undefined.
    enum Saved : std::uint8_t { of_x, of_scale, of_weight, of_activation, saved_tensors };
    static bool needs(const autograd::Context& context, std::size_t i) {
        return i < context.needs_grad.size() && context.needs_grad[i];
    }
    // Whether a recorded backward computes the pre-activation again.
    bool reads_operands() const { return activation_ != Activation::none && activation_ != Activation::relu; }
    bool by_tensor() const { return fp8_.granularity == Granularity::tensor; }
    bool saves_codes() const { return by_tensor() && fp8_.weight_grad == amp::WeightGrad::fp8; }
    QuantizeOptions options(Dtype dtype) const {
        return {.dtype = dtype, .granularity = fp8_.granularity, .exact_scale = fp8_.exact_scale};
    }
    Quantized operand(const Tensor& x) const { return quantize(x, options(float8_e4m3fn)); }
    QuantizedBoth both_operands(const Tensor& x, Wanted wanted = Wanted::both) const {
        return quantize_both(x, options(float8_e4m3fn), wanted);
    }
    // Scales of rows fit each gradient, so it needs no wider range than the other operands.
    Dtype gradient_dtype() const { return by_tensor() ? float8_e5m2 : float8_e4m3fn; }
    Quantized gradient_operand(const Tensor& dz) const { return quantize(dz, options(gradient_dtype())); }
    // Operands of the products of dx and, with codes of one scale, of dW.
    QuantizedBoth gradient_operands(const Tensor& dz, const autograd::Context& context) const {
        if (needs(context, 1) && saves_codes())
            return quantize_both(dz, options(gradient_dtype()),
                                 needs(context, 0) ? Wanted::both : Wanted::transposed);
        if (needs(context, 0)) return {gradient_operand(dz), {}};
        return {};
    }

    Tensor before_activation(const Tensor& dy, const autograd::Context& context) const {
        if (activation_ == Activation::none) return dy;
        return through_activation(activation_, dy, matrix_of(context.saved[of_activation]));
    }

    Tensor weight_gradient(const Tensor& dz, const QuantizedBoth& qdz,
                           const autograd::Context& context) const {
        const Tensor& x = context.saved[of_x];
        if (fp8_.weight_grad == amp::WeightGrad::low) return product_as(dz.t(), x, float32);
        if (by_tensor()) return product(qdz.transposed, {x, context.saved[of_scale]});
        return product(gradient_operand(dz.t()), operand(x.t()));
    }

    // The same in ops with gradients of their own, on operands in 16 bit.
    Tensors recorded(const autograd::Context& context, const Tensor& dy) const {
        Tensor x = context.saved[of_x], weight = context.saved[of_weight];
        if (x.defined()) {
            if (saves_codes()) x = dequantize({x.t(), context.saved[of_scale]}, low_);
            x = x.reshape(x_shape_);
            x = matrix_of(edges_[0].needed() ? reattach(x, edges_[0], dtypes_[0]) : x);
        }
        if (weight.defined() && edges_[1].needed()) weight = reattach(weight, edges_[1], dtypes_[1]);
        Tensor dz = dy;
        if (activation_ == Activation::relu) {
            dz = through_activation(activation_, dy, matrix_of(context.saved[of_activation]));
        } else if (activation_ != Activation::none) {
            dz = through_activation(activation_, dy, pre_activation(context, x, weight));
        }
        Tensors result(context.needs_grad.size());
        if (needs(context, 0))
            result[0] = cast(product_as(dz, weight, dtypes_[0]), dtypes_[0]).reshape(x_shape_);
        if (needs(context, 1)) result[1] = cast(product_as(dz.t(), x, dtypes_[1]), dtypes_[1]);
        if (needs(context, 2)) result[2] = cast(bias_grad(dz, float32), dtypes_[2]);
        return result;
    }

    // The saved pre-activation, with the history of the operands that it was computed from.
    Tensor pre_activation(const autograd::Context& context, const Tensor& x, const Tensor& weight) const {
        Tensor z = linear(x, weight);
        if (edges_[2].needed())
            z = z + reattach(zeros({weight.size(0)}, {.dtype = low_, .device = x.device()}), edges_[2],
                             dtypes_[2]);
        return z + (matrix_of(context.saved[of_activation]) - z.detach());
    }

    amp::Fp8 fp8_;
    Activation activation_;
    Dtype low_;
    Shape x_shape_;
    std::array<Dtype, 3> dtypes_;  // of x, weight and bias as given
    std::array<Edge, 3> edges_;    // of the same
};

}  // namespace

Tensor linear_fp8(const amp::Fp8& fp8, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  Activation activation) {
    const Fp8Layer layer(fp8, x, weight, bias, activation);
    const AutocastCounters before = autocast_counters();
    const Tensors given = bias.defined() ? Tensors{x, weight, bias} : Tensors{x, weight};
    const Tensor y = autograd::apply_function(
        {.name = "linear_fp8"},
        [layer](autograd::Context& context, const Tensors& in) { return layer.forward(context, in); },
        [layer](const autograd::Context& context, const Tensors& g) { return layer.backward(context, g); },
        given)[0];
    const AutocastCounters after = autocast_counters();
    report_call(report_traits, given, float8_e4m3fn, y.dtype(),
                {after.casts - before.casts, after.cast_bytes - before.cast_bytes});
    return y;
}

}  // namespace mezzo
