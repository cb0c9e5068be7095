// linear in float8, of an Autocast scope with fp8. A merged layer has several weights W and one x. With q(a)
// the codes of a along the dimension of the sum, and s(a) their scales:
//
//     z = q(x) q(W)^T / (s(x) s(W)) + b,  y = activation(z)        forward
//
//     dz = dy * activation'(z)
//     dx = q(dz) q(W) / (s(dz) s(W))                               summed over the weights
//     dW = q(dz)^T q(x) / (s(dz) s(x)),  db = sum of the rows of dz
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "autograd/autocast_state.h"
#include "autograd/extra.h"
#include "autograd/report.h"
#include "core/memory/memory_hook.h"
#include "kernels/matmul.h"
#include "kernels/merged_linear.h"
#include "ops/gemm/fp8_product.h"
#include "ops/gemm/fp8_weight.h"
#include "ops/gemm/linear.h"
#include "ops/gemm/products.h"

namespace mezzo {

namespace {

// Named as in 16 bit, for observers and reports. Their nodes have gradients of their own (apply_as).
constexpr OpTraits traits_of(const char* name) {
    return {.name = name, .cast = CastPolicy::low, .saves = save_none, .fp8 = true};
}
const Op<kernels::Linear> linear_op{traits_of("linear")};
const Op<kernels::Linear> linear_relu_op{traits_of("linear_relu")};
const Op<kernels::Linear> linear_gelu_op{traits_of("linear_gelu")};
const Op<kernels::MergedLinear> merged_linear_op{traits_of("merged_linear")};

const AnyOp& op_for(Activation activation) {
    if (activation == Activation::none) return linear_op;
    return activation == Activation::relu ? linear_relu_op : linear_gelu_op;
}

// Whether scales of the product are computed from a history, which lies next to the weight.
bool is_delayed(const amp::Fp8& fp8, const Tensor& weight) {
    return fp8.recipe == amp::Recipe::delayed && tracked(weight) && weight.is_leaf();
}

class Fp8Layer {
public:
    // inputs: x, the weights, and as many biases, or none.
    Fp8Layer(const amp::Fp8& fp8, const Tensors& inputs, std::size_t parts, Activation activation)
        : fp8_(fp8),
          parts_(parts),
          activation_(activation),
          low_(autocast_dtype(CastPolicy::low, inputs[0])),
          caches_(thread_state.autocast.cache),
          x_shape_(inputs[0].shape()) {
        for (const Tensor& x : inputs) {
            dtypes_.push_back(x.dtype());
            edges_.push_back(edge_of(x));
        }
        for (std::size_t i = 0; i < parts; ++i) {
            const Tensor& weight = inputs[1 + i];
            sizes_.push_back(weight.size(0));
            const Ref<Fp8Weight> state = Fp8Weight::of(weight);
            weights_.push_back({state, weight.version(), is_delayed(fp8, weight)});
        }
    }

    Tensors forward(autograd::Context& context, const Tensors& in) const {
        const Tensor x = matrix_of(cached_cast(in[0], low_));
        Tensors weights, results;
        for (std::size_t i = 0; i < parts_; ++i) weights.push_back(cached_cast(in[1 + i], low_));
        const NoAutocast plain;
        context.saved.resize(of_weights + parts_ * saved_per_weight);
        const bool recorded =
            std::find(context.needs_grad.begin(), context.needs_grad.end(), true) != context.needs_grad.end();
        const bool saves_z = recorded && reads_operands();
        bool reads_x = saves_z;
        for (std::size_t i = 0; i < parts_; ++i) reads_x = reads_x || needs(context, 1 + i);
        const QuantizedBoth qx =
            codes_of_x(x, reads_x && saves_codes() ? Wanted::both : Wanted::matrix, recorded);
        for (std::size_t i = 0; i < parts_; ++i) {
            const QuantizedBoth qw =
                weight_codes(i, weights[i], needs(context, 0) ? Wanted::both : Wanted::matrix, recorded);
            const Fp8Result z =
                product(qx.matrix, qw.matrix, in.size() > 1 + parts_ ? in[1 + parts_ + i] : Tensor(),
                        {.dtype = low_, .activation = activation_, .saves_pre_activation = saves_z});
            if (saves_z) context.saved[of_activation] = z.pre_activation;
            results.push_back(z.y);
            if (needs(context, 0) || saves_z) save_weight(context, i, weights[i], qw.transposed);
        }
        if (reads_x) context.saved[of_x] = saves_codes() ? qx.transposed.codes : x;
        context.saved[of_scale] = qx.matrix.scale;
        Shape shape = x_shape_;
        shape.back() = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t(0));
        Tensor result = (parts_ == 1 ? results[0] : cat(results, 1)).reshape(shape);
        if (activation_ == Activation::relu) context.saved[of_activation] = result;
        return {result};
    }

    Tensors backward(const autograd::Context& context, const Tensors& gradients) const {
        const NoAutocast plain;
        const Tensor dy = matrix_of(cast(gradients[0], low_));
        if (grad_enabled()) return recorded(context, dy);
        const Tensors dzs = columns_of_parts(before_activation(dy, context));
        Tensors result(context.needs_grad.size());
        Tensor dx;
        Quantized qx;  // made for the first weight that needs it
        for (std::size_t i = 0; i < parts_; ++i) {
            const Tensor& dz = dzs[i];
            const bool reads_columns = needs(context, 1 + i) && fp8_.weight_grad == amp::WeightGrad::fp8;
            QuantizedBoth qdz;
            if (needs(context, 0) || reads_columns)
                qdz = recorded_operands(dz, delayed(i, i + 1), Fp8Operand::gradient,
                                        !reads_columns      ? Wanted::matrix
                                        : needs(context, 0) ? Wanted::both
                                                            : Wanted::transposed);
            if (needs(context, 0)) {
                const Tensor part = product(qdz.matrix, columns_of_weight(context, i));
                dx = dx.defined() ? dx + part : part;
            }
            if (needs(context, 1 + i))
                result[1 + i] = cast(weight_gradient(dz, qdz, context, qx), dtypes_[1 + i]);
            if (needs(context, 1 + parts_ + i))
                result[1 + parts_ + i] = cast(bias_grad(dz, float32), dtypes_[1 + parts_ + i]);
        }
        if (dx.defined()) result[0] = cast(dx, dtypes_[0]).reshape(x_shape_);
        return result;
    }

private:
    // The saved tensors: x in 16 bit or as codes of the transposed matrix, its scale, and the tensor that the
    // activation's gradient reads; then for each weight its 16-bit form, the codes of the transposed matrix,
    // their scale, and the scale's inverse. Tensors that no gradient reads are undefined.
    enum Saved : std::uint8_t { of_x, of_scale, of_activation, of_weights };
    enum SavedOfWeight : std::uint8_t { in_16bit, as_codes, of_codes, inverse, saved_per_weight };
    struct Weight {
        Ref<Fp8Weight> state;  // null: its codes are made for each call
        std::uint64_t version;
        bool delayed;  // scales are of the history
    };
    static bool needs(const autograd::Context& context, std::size_t i) {
        return i < context.needs_grad.size() && context.needs_grad[i];
    }
    static const Tensor& saved_weight(const autograd::Context& context, std::size_t i,
                                      SavedOfWeight which = in_16bit) {
        return context.saved[of_weights + i * saved_per_weight + which];
    }
    // Whether a recorded backward computes the pre-activation again.
    bool reads_operands() const { return activation_ != Activation::none && activation_ != Activation::relu; }
    bool by_tensor() const { return fp8_.granularity == Granularity::tensor; }
    bool saves_codes() const { return by_tensor() && fp8_.weight_grad == amp::WeightGrad::fp8; }
    // Gradients have E5M2 for its range if the tensor has one scale. Scales of rows need no wider range.
    QuantizeOptions options_of(Fp8Operand which) const {
        return {.dtype = by_tensor() && which == Fp8Operand::gradient ? float8_e5m2 : float8_e4m3fn,
                .granularity = fp8_.granularity,
                .exact_scale = fp8_.exact_scale};
    }
    // Codes of an operand and of the transposed one. The scale is computed from the histories of the weights
    // `of`, the first of which has precedence. The result has the operand's largest element if there are any.
    Fp8Codes operands(const Tensor& x, const std::vector<const Weight*>& of, Fp8Operand which,
                      Wanted wanted) const {
        if (of.empty()) return {quantize_both(x, options_of(which), wanted)};
        Tensor history = zeros({1, 1}, {.device = x.device()});
        for (auto weight = of.rbegin(); weight != of.rend(); ++weight)
            history = (*weight)->state->largest(which, history);
        return quantize_delayed(x, history, options_of(which), fp8_.margin);
    }
    std::vector<const Weight*> delayed(std::size_t first, std::size_t end) const {
        std::vector<const Weight*> result;
        for (std::size_t i = first; i < end; ++i)
            if (weights_[i].delayed) result.push_back(&weights_[i]);
        return result;
    }
    // Makes the codes of operands(), and adds the largest element to the histories of these weights.
    QuantizedBoth recorded_operands(const Tensor& x, const std::vector<const Weight*>& of, Fp8Operand which,
                                    Wanted wanted) const {
        for (const Weight* const weight : of) weight->state->prepare(x.device(), fp8_.history);
        const Fp8Codes result = operands(x, of, which, wanted);
        for (const Weight* const weight : of) weight->state->record(which, result.largest, fp8_.history);
        return result.both;
    }
    // Makes the codes of x, which all weights share. recorded: adds its largest element to each history.
    QuantizedBoth codes_of_x(const Tensor& x, Wanted wanted, bool recorded) const {
        const std::vector<const Weight*> of = delayed(0, parts_);
        return recorded ? recorded_operands(x, of, Fp8Operand::input, wanted)
                        : operands(x, of, Fp8Operand::input, wanted).both;
    }
    // Whether codes of weight i are made once for each change of the weight.
    bool is_cached(std::size_t i) const { return weights_[i].state && caches_; }
    // Returns the wanted codes of weight i, whose 16-bit form is `low`, and perhaps others.
    // recorded: the history gets the weight's largest element.
    QuantizedBoth weight_codes(std::size_t i, const Tensor& low, Wanted wanted, bool recorded) const {
        const Weight& weight = weights_[i];
        const std::vector<const Weight*> of = delayed(i, i + 1);
        const auto make = [&] { return operands(low, of, Fp8Operand::weight, wanted); };
        const int steps = recorded && weight.delayed ? fp8_.history : 0;
        if (!is_cached(i)) {
            const Fp8Codes made = make();
            if (steps > 0) weight.state->record(Fp8Operand::weight, made.largest, steps);
            return made.both;
        }
        return weight.state->codes({.version = weight.version,
                                    .run = MemoryHook::number_of(low.device()),
                                    .low = low_,
                                    .recipe = weight.delayed ? fp8_.recipe : amp::Recipe::current,
                                    .granularity = fp8_.granularity,
                                    .exact_scale = fp8_.exact_scale,
                                    .margin = fp8_.margin},
                                   wanted, steps, make);
    }
    // Codes of the transposed weight i, as the gradient of x reads them.
    Quantized columns_of_weight(const autograd::Context& context, std::size_t i) const {
        return {saved_weight(context, i, as_codes), saved_weight(context, i, of_codes),
                saved_weight(context, i, inverse)};
    }
    void save_weight(autograd::Context& context, std::size_t i, const Tensor& low,
                     const Quantized& codes) const {
        const std::size_t first = of_weights + i * saved_per_weight;
        context.saved[first + in_16bit] = low;
        context.saved[first + as_codes] = codes.codes;
        context.saved[first + of_codes] = codes.scale;
        context.saved[first + inverse] = codes.inverse;
    }

    // The columns of g [rows, out features of all weights] of each weight.
    Tensors columns_of_parts(const Tensor& g) const {
        if (parts_ == 1) return {g};
        Tensors result;
        std::int64_t first = 0;
        for (const std::int64_t size : sizes_) {
            result.push_back(g.slice(1, first, first + size));
            first += size;
        }
        return result;
    }

    Tensor before_activation(const Tensor& dy, const autograd::Context& context) const {
        if (activation_ == Activation::none) return dy;
        return through_activation(activation_, dy, matrix_of(context.saved[of_activation]));
    }

    // qx: the codes of the transposed x, which all weights share; made here if undefined.
    Tensor weight_gradient(const Tensor& dz, const QuantizedBoth& qdz, const autograd::Context& context,
                           Quantized& qx) const {
        const Tensor& x = context.saved[of_x];
        if (fp8_.weight_grad == amp::WeightGrad::low) return product_as(dz.t(), x, float32);
        if (!qx.codes.defined())
            qx = saves_codes() ? Quantized{x, context.saved[of_scale]}
                               : operands(x, {}, Fp8Operand::input, Wanted::transposed).both.transposed;
        return product(qdz.transposed, qx);
    }

    // Computes the gradients in ops with gradients of their own, on operands in 16 bit.
    Tensors recorded(const autograd::Context& context, const Tensor& dy) const {
        Tensor x = context.saved[of_x], dx;
        Tensors weights;
        if (x.defined()) {
            if (saves_codes()) x = dequantize({x.t(), context.saved[of_scale]}, low_);
            x = x.reshape(x_shape_);
            x = matrix_of(edges_[0].needed() ? reattach(x, edges_[0], dtypes_[0]) : x);
        }
        for (std::size_t i = 0; i < parts_; ++i) {
            const Tensor& weight = saved_weight(context, i);
            weights.push_back(weight.defined() && edges_[1 + i].needed()
                                  ? reattach(weight, edges_[1 + i], dtypes_[1 + i])
                                  : weight);
        }
        const Tensors dzs = columns_of_parts(recorded_activation(context, dy, x, weights[0]));
        Tensors result(context.needs_grad.size());
        for (std::size_t i = 0; i < parts_; ++i) {
            const Tensor& dz = dzs[i];
            if (needs(context, 0)) {
                const Tensor part = product_as(dz, weights[i], dtypes_[0]);
                dx = dx.defined() ? dx + part : part;
            }
            if (needs(context, 1 + i))
                result[1 + i] = cast(product_as(dz.t(), x, dtypes_[1 + i]), dtypes_[1 + i]);
            if (needs(context, 1 + parts_ + i))
                result[1 + parts_ + i] = cast(bias_grad(dz, float32), dtypes_[1 + parts_ + i]);
        }
        if (dx.defined()) result[0] = cast(dx, dtypes_[0]).reshape(x_shape_);
        return result;
    }

    Tensor recorded_activation(const autograd::Context& context, const Tensor& dy, const Tensor& x,
                               const Tensor& weight) const {
        if (activation_ == Activation::none) return dy;
        if (activation_ == Activation::relu) return before_activation(dy, context);
        return through_activation(activation_, dy, pre_activation(context, x, weight));
    }

    // The saved pre-activation, with the history of the operands that it was computed from.
    Tensor pre_activation(const autograd::Context& context, const Tensor& x, const Tensor& weight) const {
        Tensor z = linear(x, weight);
        if (edges_.size() > 2 && edges_[2].needed())
            z = z + reattach(zeros({weight.size(0)}, {.dtype = low_, .device = x.device()}), edges_[2],
                             dtypes_[2]);
        return z + (matrix_of(context.saved[of_activation]) - z.detach());
    }

    amp::Fp8 fp8_;
    std::size_t parts_;      // number of weights
    Activation activation_;  // none if there are several
    Dtype low_;
    bool caches_;  // AutocastOptions::cache
    Shape x_shape_;
    std::vector<std::int64_t> sizes_;  // out features of each weight
    std::vector<Weight> weights_;
    std::vector<Dtype> dtypes_;  // of the inputs as given
    std::vector<Edge> edges_;    // of the inputs
};

}  // namespace

Tensor linear_fp8(const amp::Fp8& fp8, const Tensor& x, const Tensors& weights, const Tensors& biases,
                  Activation activation) {
    Tensors given{x};
    given.insert(given.end(), weights.begin(), weights.end());
    given.insert(given.end(), biases.begin(), biases.end());
    const auto layer = std::make_shared<const Fp8Layer>(fp8, given, weights.size(), activation);
    const AutocastCounters before = autocast_counters();
    const auto forward = [layer](autograd::Context& context, const Tensors& in) {
        return layer->forward(context, in);
    };
    const auto backward = [layer](const autograd::Context& context, const Tensors& g) {
        return layer->backward(context, g);
    };
    const bool merged = weights.size() > 1;
    const AnyOp& op = merged ? merged_linear_op : op_for(activation);
    const kernels::MergedLinear of_merged{.parts = int(weights.size())};
    const kernels::Linear of_single{.activation = activation};
    const AttributesRef attributes = merged ? AttributesRef(of_merged) : AttributesRef(of_single);
    const Tensor y = apply_as(op, attributes, forward, backward, given)[0];
    const AutocastCounters after = autocast_counters();
    report_call(op.traits(), given, float8_e4m3fn, y.dtype(),
                {after.casts - before.casts, after.cast_bytes - before.cast_bytes});
    return y;
}

}  // namespace mezzo
